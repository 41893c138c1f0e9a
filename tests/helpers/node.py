"""Students in Node, called as a program calls them: files of the engine, and HTML files of `distill export`."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("node")
PACKAGE = Path(__file__).parents[2] / "student/engine/node"
SCRIPT = r"""
const {readFileSync} = await import("node:fs"), {createInterface} = await import("node:readline");
const {open} = await import(process.argv[1]);
const students = new Map();

async function opened(file, task) {
  if (!file.endsWith(".html")) return open(file, task);
  const html = readFileSync(file, "utf8");
  const part = (id) => html.match(new RegExp(`<script id="${id}"[^>]*>([^]*?)</script>`))[1];
  return new Function(`${part("api")}; return openStudent`)()(part("student"));
}

async function answer({file, task, inputs, texts, options}) {
  const key = JSON.stringify([file, task]);
  if (students.size > 20) students.clear(); // each has the memory of an instance
  if (!students.has(key)) students.set(key, await opened(file, task));
  const student = students.get(key);
  if (texts) return texts.map((text) => student.tokenize(text));
  const numbers = student.logits(inputs), predictions = student.predict(inputs, options);
  const rows = student.labelsWords ? inputs.flat() : inputs, width = numbers.length / rows.length;
  const asJson = (number) => (number === -Infinity ? "-inf" : number);
  return {logits: rows.map((_, n) => [...numbers.slice(n * width, (n + 1) * width)].map(asJson)), predictions};
}

for await (const line of createInterface({input: process.stdin})) {
  console.log(JSON.stringify(await answer(JSON.parse(line)).catch((error) => ({error: String(error)}))));
}
"""

Inputs = Sequence[str] | Sequence[Sequence[str]]


class Node:
    """A running Node. It keeps files open."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, file: Path, inputs: Inputs, task: str | None = None, abstain: bool = False) -> dict[str, Any]:
        """The ``logits`` and ``predictions`` of a file for inputs, or its ``error``."""
        question: dict[str, Any] = {"file": str(file), "inputs": inputs}
        question |= {} if task is None else {"task": task}
        question |= {"options": {"abstain": True}} if abstain else {}
        answer: dict[str, Any] = self._exchange(question)
        return answer

    def tokens(self, file: Path, texts: Sequence[str]) -> list[list[int]]:
        """The token ids that a file makes of texts."""
        ids: list[list[int]] = self._exchange({"file": str(file), "texts": texts})
        return ids

    def _exchange(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def running_node() -> Iterator[Node]:
    """Starts Node, and ends it."""
    assert PROGRAM is not None
    command = [PROGRAM, "--input-type=module", "-e", SCRIPT, (PACKAGE / "index.js").as_uri()]
    with subprocess.Popen(command, text=True, stdin=-1, stdout=-1) as process:
        try:
            yield Node(process)
        finally:
            process.kill()

"""Students in Node: HTML files of `distill export`, called as a program calls them."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("node")
SCRIPT = r"""
const {readFileSync} = require("node:fs");
const students = new Map();

async function opened(file) {
  const html = readFileSync(file, "utf8");
  const part = (id) => html.match(new RegExp(`<script id="${id}"[^>]*>([^]*?)</script>`))[1];
  return new Function(`${part("api")}; return openStudent`)()(part("student"));
}

async function answer({file, inputs, texts}) {
  if (!students.has(file)) students.set(file, await opened(file));
  const student = students.get(file), {labels} = student.shape;
  if (texts) return texts.map((text) => student.words.read(text));
  const numbers = student.logits(inputs), predictions = student.predict(inputs);
  return {logits: inputs.map((_, n) => [...numbers.slice(n * labels, (n + 1) * labels)]), predictions};
}

(async () => {
  for await (const line of require("node:readline").createInterface({input: process.stdin})) {
    console.log(JSON.stringify(await answer(JSON.parse(line)).catch((error) => ({error: String(error)}))));
  }
})();
"""

Inputs = Sequence[str] | Sequence[Sequence[str]]


class Node:
    """A running Node."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, file: Path, inputs: Inputs) -> dict[str, Any]:
        """The ``logits`` and ``predictions`` of a file for inputs, or its ``error``."""
        answer: dict[str, Any] = self._exchange({"file": str(file), "inputs": inputs})
        return answer

    def rows(self, file: Path, texts: Sequence[str]) -> list[list[int]]:
        """The numbers of the rows that a file reads of texts."""
        rows: list[list[int]] = self._exchange({"file": str(file), "texts": texts})
        return rows

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
    with subprocess.Popen([PROGRAM, "-e", SCRIPT], text=True, stdin=-1, stdout=-1) as process:
        try:
            yield Node(process)
        finally:
            process.kill()

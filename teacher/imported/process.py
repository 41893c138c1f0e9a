"""A teacher in a process of its own: ``python -m teacher.imported.process FOLDER MAX_SEQ_LENGTH``.

It reads questions from standard input and writes answers to standard output, a JSON object in each line: ``{"first":
[...], "second": [...] or null}`` is answered by ``{"labels": [...], "probabilities": [[...], ...]}``, or by ``{"error":
"..."}``. The first line is ``{"ready": true}``, or the error that made loading fail. The end of standard input ends it.
"""

import json
import sys
from typing import Any

import torch

from pipeline.errors import DistillError
from pipeline.tasks.target import softmax
from teacher.models.batches import tokens_per_batch
from teacher.models.classifier import Teacher, load_any_teacher
from teacher.models.loaded import inference_mode
from teacher.models.teacher_logits import teacher_logits


def answers(teacher: Teacher, max_seq_length: int, question: dict[str, Any]) -> dict[str, Any]:
    """The probabilities of the texts of a question, and the names of the labels in their order."""
    device = teacher.model.device
    inputs = teacher.reader.tokenize(question["first"], question["second"], max_seq_length)
    with inference_mode(device, "fp32"):
        logits_NC = teacher_logits(teacher, inputs, tokens_per_batch(device))
    return {"labels": teacher.labels, "probabilities": softmax(logits_NC).tolist()}


def main(folder: str, max_seq_length: int) -> None:
    """Answers until there are no more questions."""
    # Libraries print to standard output at times, where only answers may stand.
    out, sys.stdout = sys.stdout, sys.stderr

    def put(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=out, flush=True)

    try:
        teacher = load_any_teacher(folder, max_seq_length)
    except DistillError as error:
        put({"error": str(error)})
        return
    teacher.model.to("cuda" if torch.cuda.is_available() else "cpu")
    put({"ready": True})
    for line in sys.stdin:
        try:
            answer = answers(teacher, max_seq_length, json.loads(line))
        except Exception as error:  # noqa: BLE001  (the caller decides what follows)
            answer = {"error": f"{type(error).__name__}: {error}"}
        put(answer)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

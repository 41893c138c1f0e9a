"""A teacher in a process of its own: ``python -m teacher.answers.process FOLDER MAX_SEQ_LENGTH``.

It reads questions from standard input and writes answers to standard output, a JSON object in each line: ``{"first":
[...], "second": [...] or null}`` is answered by ``{"labels": [...], "probabilities": [[...], ...]}``, or by ``{"error":
"..."}``. The first line is ``{"ready": true}``. The end of standard input ends it. Shapes: B batch, C labels.
"""

import json
import sys
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

BATCH_SIZE = 32


def answers(model: Any, tokenizer: Any, max_seq_length: int, question: dict[str, Any]) -> dict[str, Any]:
    """The probabilities of the texts of a question, and the names of the labels in their order."""
    first, second = question["first"], question["second"]
    probabilities: list[list[float]] = []
    for start in range(0, len(first), BATCH_SIZE):
        texts = [part[start : start + BATCH_SIZE] for part in (first, second) if part is not None]
        inputs = tokenizer(*texts, padding=True, truncation=True, max_length=max_seq_length, return_tensors="pt")
        with torch.inference_mode():
            logits_BC = model(**inputs.to(model.device)).logits.double()
        probabilities += logits_BC.softmax(dim=1).tolist()
    labels = [str(model.config.id2label[k]) for k in range(model.config.num_labels)]
    return {"labels": labels, "probabilities": probabilities}


def main(folder: str, max_seq_length: str) -> None:
    """Answers until there are no more questions."""
    # Libraries print to standard output at times, where only answers may stand.
    out, sys.stdout = sys.stdout, sys.stderr
    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True).eval()
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        try:
            answer = answers(model, tokenizer, int(max_seq_length), json.loads(line))
        except Exception as error:  # noqa: BLE001  (the caller decides what follows)
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

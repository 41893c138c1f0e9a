"""Bodies of requests to ``distill serve``."""

from distill.apps.serve.app import POST
from distill.apps.serve.requests import checked_texts, parsed

COVERS = ("distill.apps.serve.requests",)
KINDS = tuple(kind for kind, _ in POST.values())
SEEDS = [
    bytes([number]) + body
    for number in range(len(KINDS))
    for body in (
        b'{"inputs": "one"}',
        b'{"inputs": ["a", "b"], "raw_scores": true, "truncate": null}',
        b'{"inputs": [["a"], ["b", "c"]]}',
        b'{"inputs": [{"text": "a", "text_pair": "b"}], "parameters": {"top_k": 2, "function_to_apply": "sigmoid"}}',
    )
]


def read(data: bytes) -> None:
    number = data[0] if data else 0
    question = parsed(KINDS[number % len(KINDS)], data[1:])
    checked_texts(question, number >= 128, 32)

"""Imported answers, which anybody may have given."""

from pipeline.tasks.task import load_task
from teacher.imported.answer_rows import read_answers
from teacher.imported.import_settings import AnswersFile
from tests.fuzz.files import FOLDER, of_a_kind, seeds, written

COVERS = ("teacher.imported.answer_rows", "teacher.imported.answer_rows")
KINDS = (".csv", ".jsonl")
TASK = load_task("rte")
CONFIGS = {
    kind: AnswersFile(file=FOLDER / f"answers{kind}", task="rte", teacher="anybody", rest="spread") for kind in KINDS
}
SEEDS = seeds(
    KINDS,
    {
        ".csv": [b'probabilities\n"[0.5, 0.5]"\n\n"{""entailment"": 1}"\n', b'logits\n"[1, -2]"\n'],
        ".jsonl": [
            b'{"logprobs": {"entailment": -0.1, "not_entailment": -3}}\n{"logprobs": {}}\n',
            b'{"logits": [1, 2]}',
        ],
    },
)


def read(data: bytes) -> None:
    kind, content = of_a_kind(data, KINDS)
    written(f"answers{kind}", content)
    read_answers(CONFIGS[kind], TASK)

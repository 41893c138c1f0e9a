from typing import Any

from distill.apps.experiments.comparison import page


def cell(kind: str, *accuracies: float, **more: Any) -> dict[str, Any]:
    seeds = [
        {"scores": {"accuracy": a}, "intervals": {"accuracy": [a - 0.1, a + 0.1]}, "fidelity": a} for a in accuracies
    ]
    return {"kind": kind, "splits": {"validation": seeds}, "parameters": 1234, "bytes": 5_600_000} | more


SPEED = {"sentences_per_second": 12345.6, "times_default": 0.25}
APART = {"validation": {"metric": {"mean": 0.012, "error": 0.0051}, "fidelity": {"mean": -0.2, "error": 0.01}}}
FOUND: dict[str, Any] = {
    "command": "distill sweep --experiment glue --tasks mrpc,qnli --model-name-or-path bert",
    "machine": {"processor": "a processor", "torch": "2.0"},
    "about": {"TF-IDF": "words"},
    "tasks": {
        "mrpc": {
            "metrics": ["accuracy"],
            "rows": {"train": {"rows": 3000, "whole": 3668}, "validation": {"rows": 408, "whole": 408}},
            "absent": ["test"],
            "teacher": {
                "folder": "teachers/mrpc/43",
                "seeds": {
                    "42": {"held-out": {"accuracy": 0.7}, "validation": {"accuracy": 0.9}},
                    "43": {"held-out": {"accuracy": 0.8}, "validation": {"accuracy": 0.8}},
                },
            },
            "sets": {"default": {"bytes": 1_000_000, "seconds": 33.3}},
            "seeds": [42, 43],
            "first": "default",
            "commands": ["distill finetune-teacher …", "distill train-student …"],
            "systems": {
                "TF-IDF": cell("baseline", 0.767, training_seconds=[2.4], differences=APART, **SPEED),
                "model2vec": {"left_out": "model2vec not installed:\npip install x"},
                "default": cell("student", 0.75, 0.76, training_seconds=[10, None], set_bytes=1000, **SPEED),
                "broken": {"kind": "student", "failed": "its training failed"},
                "teacher": cell("teacher", 0.8, training_seconds=[None], **SPEED),
            },
            "slices": {
                "split": "validation",
                "rows": {"all": 4080, "with a negation": 30},
                "fidelity": {
                    "TF-IDF": {"all": 0.7, "with a negation": 0.6},
                    "default": {"all": 0.9, "with a negation": 0.85},
                },
            },
        },
        "qnli": {
            "metrics": ["accuracy"],
            "rows": {"validation": {"rows": 5463, "whole": 5463}},
            "absent": ["train"],
            "systems": {},
            "left_out": "no training rows are here",
        },
    },
}


def test_one_table_of_all_and_three_of_each_task() -> None:
    lines = page(FOUND).splitlines()
    tables = [line for line in lines if line.startswith("|")]
    assert tables == [
        "| task | metric | TF-IDF | model2vec | default | broken | teacher |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| [mrpc](#mrpc) | accuracy | **76.7** |  | 75.5 ± 0.7 |  | 80.0 |",
        "| [qnli](#qnli) | accuracy |  |  |  |  |  |",
        "| system | accuracy | minus default | with the teacher | with the teacher, minus default |",
        "| --- | --- | --- | --- | --- |",
        "| TF-IDF | 76.7 (66.7 to 86.7) | +1.2 ± 0.5 | 76.7 | -20.0 ± 1.0 |",
        "| default | 75.5 ± 0.7 (65.5 to 85.5) |  | 75.5 |  |",
        "| teacher | 80.0 (70.0 to 90.0) |  | 80.0 |  |",
        "| system | parameters | bytes | sentences a second | times | training | set |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| TF-IDF | 1,234 | 5.6 MB | 12,346 | 0.25 | 2 s |  |",
        "| default | 1,234 | 5.6 MB | 12,346 | 0.25 | 10 s | 1.0 kB |",
        "| teacher | 1,234 | 5.6 MB | 12,346 | 0.25 |  |  |",
        "| system | all (4,080) | with a negation (30) |",
        "| --- | --- | --- |",
        "| TF-IDF | 70.0 | 60.0 |",
        "| default | 90.0 | 85.0 |",
    ]


def test_what_is_not_whole_is_told() -> None:
    text = page(FOUND)
    assert "Rows: train 3,000 of 3,668, validation 408. Not here: test." in text
    assert "Not compared: no training rows are here." in text
    assert "- model2vec: model2vec not installed: pip install x\n- broken: its training failed\n" in text


def test_who_taught_and_how_it_was_chosen() -> None:
    told = "Teacher `teachers/mrpc/43`, by held-out accuracy: 70.0 with seed 42, 80.0 with seed 43. "
    assert told + "Sets: `default` 1.0 MB in 33 s. Seeds of students: 42, 43." in page(FOUND)


def test_what_the_teacher_was_fine_tuned_from() -> None:
    assert "fine-tuned from" not in page(FOUND)
    started = page(found_with(**{"from": "teachers/mnli/43"}))
    assert "Teacher `teachers/mrpc/43`, fine-tuned from `teachers/mnli/43`, by held-out" in started
    absent = page(found_with(absent_start="mnli"))
    assert "80.0 with seed 43. It started from the encoder: no training rows of mnli are here, from whose" in absent


def found_with(**more: str) -> dict[str, Any]:
    """The same, with more of MRPC's teacher."""
    mrpc = FOUND["tasks"]["mrpc"]
    return FOUND | {"tasks": {"mrpc": mrpc | {"teacher": mrpc["teacher"] | more}}}


def test_the_commands_are_there() -> None:
    text = page(FOUND)
    assert "```sh\ndistill sweep --experiment glue --tasks mrpc,qnli --model-name-or-path bert\n```" in text
    assert "```sh\ndistill finetune-teacher …\ndistill train-student …\n```" in text

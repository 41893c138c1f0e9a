"""What a set of logits holds of the tasks that are shipped."""

from pipeline.tasks.target import Target, make_target
from pipeline.tasks.task import load_task
from student.model.architecture import Facts


def facts(task_name: str, target: Target | None = None) -> Facts:
    """The description of a shipped task in a logit set of BERT's."""
    task = load_task(task_name)
    return {
        "task": task.name,
        "target": target or make_target(task),
        "metrics": task.metrics,
        "is_pair": task.is_pair,
        "special_ids": ((101,), (102,), (102,)),
        "vocabulary_size": 30522,
        "pad_id": 0,
        "tokenizer_sha256": "0" * 64,
        "max_seq_length": 128,
    }

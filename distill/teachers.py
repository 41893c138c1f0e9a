"""What the commands do, as functions with their flags as keywords; their results show themselves as tables."""

from distill.commands.keywords import call_text, takes_keywords
from pipeline.shown import Result
from teacher.config import DumpTask, FinetuneTask
from teacher.dump.default_variants import with_default_variants
from teacher.dump.plan_examples import estimate
from teacher.dump.plan_sentences import estimate_vectors
from teacher.dump.sentences import dump_vectors
from teacher.dump.summary import SPLIT_COLUMNS, split_rows
from teacher.dump.task import dump_task
from teacher.finetune.classifier import finetune


@takes_keywords(FinetuneTask)
def finetune_teacher(config: FinetuneTask) -> Result:
    """Fine-tunes a teacher of a task, or goes on, as ``distill finetune-teacher`` does; returns its record."""
    config.check()
    record = finetune(config, call_text("finetune_teacher", config))
    history = record["result"]["history"]
    rows = [
        [entry["epoch"], split, name, value]
        for entry in history
        for split, metrics in entry["metrics"].items()
        for name, value in metrics.items()
    ]
    return Result(record, ("epoch", "split", "metric", "value"), rows, f"teacher {config.output_dir}")


@takes_keywords(DumpTask)
def dump_teacher(config: DumpTask) -> Result:
    """Writes a teacher's logits of a task, or vectors of its sentences, or goes on, as ``distill teacher-dump`` does.

    Returns the set's record; with ``plan`` what the set would take, and nothing is written.
    """
    wanted = with_default_variants(config)
    wanted.check()
    has_vectors = wanted.signal == "vectors"
    if wanted.plan:
        values = (estimate_vectors if has_vectors else estimate)(wanted).values()
        return Result(values, ("what", "amount"), list(values.items()), "plan")
    record = (dump_vectors if has_vectors else dump_task)(wanted, call_text("dump_teacher", config))
    assert record is not None, "one process alone is the first"
    title = f"{config.store / record.name}: {record.state}"
    return Result(record.model_dump(mode="json"), SPLIT_COLUMNS, split_rows(record), title)

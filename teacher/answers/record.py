"""The record of an imported set before its first shard: it says what is not known of the teacher."""

import json

from tokenizers import Tokenizer

from pipeline.config import as_names
from pipeline.sets.record import SetRecord, staged
from pipeline.sets.record_parts import Setting, TeacherRecord
from pipeline.sets.signals import Logits, Signals
from pipeline.sources import Source
from pipeline.tasks.task import Task
from teacher.answers.answers import Answers
from teacher.answers.config import ImportConfig
from teacher.answers.probabilities import FLOOR
from teacher.dump.source_parts import all_shards, split_records, task_record, tokenizer_record

LIBRARIES = ("distill-offline", "tokenizers", "pyarrow")
PRECISION = "unknown"


def staged_record(
    config: ImportConfig,
    task: Task,
    source: Source,
    answers: Answers,
    missing: dict[str, int],
    tokenizer: Tokenizer,
    file_sha256: str,
    command: str,
) -> SetRecord:
    """Describes the set that a file of answers gives; its fingerprint covers all that decides rows and logits.

    Args:
        config: the command's settings.
        task: what the answers are about.
        source: the rows of those splits that have answers.
        answers: of the file.
        missing: rows without an answer, by split.
        tokenizer: that students read with.
        file_sha256: hash of the file.
        command: the command line.
    """
    ids = tokenizer_record(tokenizer)
    splits = {
        split: part.model_copy(update={"absent": missing[split]}) for split, part in split_records(task, source).items()
    }
    settings: dict[str, Setting] = {
        "signal": "logits",
        "task": f"{task.name} version {task.version}",
        "target": answers.target.model_dump_json(),
        "teacher": config.teacher,
        "teacher.answers": file_sha256,
        "teacher.labels": as_names(answers.labels),
        "answers": answers.kind,
        "rest": config.rest,
        "tokenizer": ids.sha256,
        "max_seq_length": config.max_seq_length,
        **{f"source.{split}": part.rows_sha256 for split, part in splits.items()},
    }
    return staged(
        settings,
        command,
        LIBRARIES,
        name=config.set_name(task.name),
        kind="examples",
        signals=Signals(logits=Logits(target=answers.target)),
        task=task_record(task),
        teacher=TeacherRecord(name=config.teacher, answers_sha256=file_sha256, labels=answers.labels),
        tokenizer=ids,
        max_seq_length=config.max_seq_length,
        precision=PRECISION,
        source=source.description,
        splits=splits,
        shards=all_shards(source, config.rows_per_shard),
        notes=(*source.warnings, *_notes(config, answers, missing)),
    )


def _notes(config: ImportConfig, answers: Answers, missing: dict[str, int]) -> list[str]:
    """What a reader should know of how these logits came about."""
    notes = [f"logits are the teacher's {answers.kind}, imported from {config.file.name}"]
    if answers.kind in ("probabilities", "logprobs"):
        notes[0] += f": logarithms of probabilities, none of them taken for less than {FLOOR:g}"
    if answers.num_spread:
        notes.append(
            f"{answers.num_spread:,} answers did not name every label: what was left of 1 was spread over the others"
        )
    notes += [
        f"{count:,} rows of {split} have no answer, and are not in the set" for split, count in missing.items() if count
    ]
    if config.tokenizer is None:
        return [*notes, "token ids: of the words of the training texts; what the teacher itself reads is unknown"]
    return [*notes, f"token ids: by {json.dumps(str(config.tokenizer))}; what the teacher itself reads is unknown"]

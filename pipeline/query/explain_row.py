"""Traces one row of a set to its origin and checks each link: file, teacher, tokenizer, text, logits."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy.special import entr, expit, softmax
from tokenizers import Tokenizer

from pipeline.arrays import Floats64
from pipeline.errors import ConfigError, DataError, IntegrityError, did_you_mean, raise_all
from pipeline.file_names import TOKENIZER_FILE
from pipeline.sets.file_columns import with_file_columns
from pipeline.sets.files import require_shards
from pipeline.sets.kinds import kind_of
from pipeline.sets.kinds.examples import text_hash
from pipeline.sets.open import find_set
from pipeline.sets.record import SetRecord, read_set_record
from pipeline.sets.record_parts import Shard
from pipeline.tasks.target import Target, predicted_scores
from pipeline.text.tokenizer import load_tokenizer

# The digits are limited to what int64 and int32 hold, so that no address overflows a comparison in Arrow.
ADDRESS = re.compile(r"(?P<name>.+?):(?P<split>[^:]+):(?P<row>\d{1,18})(?::(?P<variant>\d{1,9}))?")

Section = dict[str, Any]
Row = dict[str, Any]


def explain_row(store: Path, address: str) -> dict[str, Section]:
    """Returns all facts about a row, by sections. Texts and ids are null in a text-free set.

    Args:
        store: folder of sets.
        address: ``SET:split:row`` or ``SET:split:row:variant``.

    Raises:
        ConfigError: if the address has another form, or the set contains tokens.
        DataError: if there is no such set, split or row.
        IntegrityError: if the set is not finished, or the file or the tokenizer of the row does not match the record.
    """
    parts = ADDRESS.fullmatch(address)
    if parts is None:
        raise ConfigError(f"--explain-row {address}: not SET:split:row or SET:split:row:variant, such as mnli:train:7")
    root = find_set(parts["name"], store)
    split, number, variant = parts["split"], int(parts["row"]), int(parts["variant"] or 0)
    record = _record_of_examples(root, split, number)
    shard = _shard_of(root, record, split, number)
    require_shards(root, record, [shard])
    table = pq.read_table((root / shard.path), filters=pc.field("source_row") == number, partitioning=None)
    rows = {row["variant"]: row for row in table.to_pylist()}
    if not rows:
        raise DataError(f"{root}: row {number:,} of {split!r} has no logits in this set")
    if variant not in rows:
        variants = ", ".join(map(str, sorted(rows))) or "none"
        raise DataError(f"{root}: row {number:,} of {split!r} has no variant {variant}. Its variants are: {variants}")
    row, tokenizer = rows[variant], load_tokenizer(root / TOKENIZER_FILE, record.tokenizer.sha256)
    target, logits, label = record.target, row["logits"], row["label"]
    problems = []
    if len(logits) != target.num_logits or not np.isfinite(logits).all():
        problems.append(f"logits {logits}, but {target.num_logits} finite numbers are needed")
    if not all(number is not None and 0 <= number < target.num_logits for number in _numbers(label)):
        problems.append(f"label {label}, but there are {target.num_logits}: {', '.join(target.names)}")
    raise_all(IntegrityError, f"{root / shard.path}: row {row['source_row']}", problems)
    return {
        **_origin(root, record, shard),
        **({"variant": _variant(record, row, rows.get(0, {}))} if variant > 0 else {}),
        "row": with_file_columns(root, split, [_text(row, tokenizer, record)])[0],
        "teacher's answer": _answer(record.target, np.array(row["logits"], dtype=np.float64)),
    }


def _record_of_examples(root: Path, split: str, number: int) -> SetRecord:
    record = read_set_record(root)
    if record.kind != "examples":
        view = kind_of(record).views(root, record)[-1].name
        raise ConfigError(
            f"{root}: holds {record.contents}. Look at its rows with "
            f"`distill sql \"from {view} where split = '{split}' and source_row = {number}\"`."
        )
    if record.state == "staged":
        raise IntegrityError(f"{root}: is not finished. Repeat the command that writes it.")
    return record


def _shard_of(root: Path, record: SetRecord, split: str, number: int) -> Shard:
    if split not in record.splits:
        raise DataError(f"{root}: no split {split!r}. {did_you_mean(split, record.splits)}")
    shard = next((s for s in record.shards_of(split) if s.start <= number < s.stop), None)
    if shard is None:
        raise DataError(
            f"{root}: no row {number:,} in {split!r}, which has the rows 0 to {record.splits[split].rows - 1:,}"
        )
    return shard


def _origin(root: Path, record: SetRecord, shard: Shard) -> dict[str, Section]:
    teacher = record.teacher
    return {
        "set": {
            **{"set": root.name, "task": record.dataset_name, "state": record.state},
            **{"fingerprint": record.fingerprint, "created": record.created, "command": record.command},
        },
        "file": {
            **{"path": shard.path, "source_rows": f"{shard.start} to {shard.stop - 1}"},
            **{"sha256": shard.sha256, "sha256_checked": True},
        },
        "teacher": {
            **{"name": teacher.name, "revision": teacher.revision, "weights_sha256": teacher.weights_sha256},
            **({"answers_sha256": teacher.answers_sha256} if teacher.is_imported else {}),
            **{"precision": record.precision, "max_seq_length": record.max_seq_length},
            **({"windows": record.windows.model_dump()} if record.windows else {}),
        },
        "tokenizer": {"sha256": record.tokenizer.sha256, "vocabulary_size": record.tokenizer.vocabulary_size},
        "source": {
            **{"source": record.source, "licence": record.licence},
            "rows_sha256": record.splits[shard.split].rows_sha256,
        },
    }


def _variant(record: SetRecord, row: Row, parent: Row) -> Section:
    made = record.augmentation
    texts = {f"parent_{name}": parent.get(name) for name in ("sentence1", "sentence2")}
    return {
        "origin": row["origin"],
        **texts,
        **({"method": made.method, "settings": dict(made.settings)} if made else {}),
    }


def _text(row: Row, tokenizer: Tokenizer, record: SetRecord) -> Section:
    sentences = row.get("sentence1"), row.get("sentence2")
    tokens = [ids and [tokenizer.id_to_token(i) for i in ids] for ids in (row.get("ids1"), row.get("ids2"))]
    belongs = None
    # The hash proves that the shown text is the one the teacher read, not one that was edited later.
    if sentences[0] is not None:
        belongs = text_hash(record.tokenizer.sha256, sentences[0], sentences[1]) == row["text_hash"]
    label = row["label"]
    gold: str | list[str] | None = [record.target.names[number] for number in _numbers(label)]
    if not record.target.has_label_lists or label is None:
        gold = gold[0] if gold else None
    return {
        **{"split": row["split"], "source_row": row["source_row"], "variant": row["variant"]},
        **{"sentence1": sentences[0], "sentence2": sentences[1], "tokens1": tokens[0], "tokens2": tokens[1]},
        **{"text_hash": row["text_hash"].hex(), "text_hash_belongs_to_text": belongs},
        **{"label": label, "gold": gold, "score": row["score"]},
    }


def _numbers(label: int | list[int] | None) -> list[int]:
    """Returns the labels of a row, which may be none, one or several."""
    return label if isinstance(label, list) else [] if label is None else [label]


def _answer(target: Target, logits_C: Floats64) -> Section:
    """Returns the meaning of the logits, with entropy in nats."""
    if target.has_label_lists:
        p_C = expit(logits_C)
        return {
            "logits": logits_C.tolist(),
            "probabilities": dict(zip(target.names, p_C.tolist(), strict=True)),
            # A logit above 0 is a sigmoid above 0.5, the usual threshold for each label.
            "answer": [name for name, logit in zip(target.names, logits_C, strict=True) if logit > 0],
        }
    score = None if target.has_labels else float(predicted_scores(target, logits_C[None].astype(np.float32))[0])
    if target.is_score:
        return {"logits": logits_C.tolist(), "score": score}
    p_C = softmax(logits_C)
    second, first = np.sort(p_C)[-2:].tolist()
    return {
        "logits": logits_C.tolist(),
        "probabilities": dict(zip(target.names, p_C.tolist(), strict=True)),
        **{"answer": target.names[int(p_C.argmax())], "score": score},
        **{"entropy": float(entr(p_C).sum()), "margin": first - second},
    }

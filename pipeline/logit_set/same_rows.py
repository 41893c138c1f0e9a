"""Do two sets mean the same input by the same key? Proved before their logits are mixed."""

from typing import Any

import duckdb

from pipeline.logit_set.reader import KEYS, LogitSet
from pipeline.sql.gate import first_row
from pipeline.targets import Target

SAME_HASH = "a.text_hash = b.text_hash"
SAME_SENTENCES = "a.sentence1 = b.sentence1 and a.sentence2 is not distinct from b.sentence2"
OTHER_GOLD = "a.label is distinct from b.label or a.score is distinct from b.score"


def different_rows(connection: duckdb.DuckDBPyConnection, split: str, first: LogitSet, other: LogitSet) -> list[str]:
    """Says which row of a split is the first to have the same key in two sets and another text, or other gold.

    Texts are the same if their hashes are; hashes of different tokenizers are not comparable, there the texts are.

    Args:
        connection: holds a view of each set, labels in the same order.
        split: its name, for the message.
        first: one set.
        other: the other set.
    """
    same_tokenizer = first.manifest.tokenizer.sha256 == other.manifest.tokenizer.sha256
    other_text = f"({SAME_HASH if same_tokenizer else SAME_SENTENCES}) is not true"
    for what, condition, columns in (
        ("text", other_text, ("sentence1", "sentence2")),
        ("gold", OTHER_GOLD, ("label", "score")),
    ):
        shown = ", ".join(f"{side}.{column}" for side in "ab" for column in columns)
        row = first_row(
            connection,
            f'select source_row, variant, {shown} from "{first.view}" a join "{other.view}" b '  # noqa: S608
            f"using ({', '.join(KEYS)}) where {condition} order by source_row, variant limit 1",
        )
        if row is not None:
            number, variant, *values = row
            ours, theirs = (_shown(first.manifest.target, what, *pair) for pair in (values[:2], values[2:]))
            key = f"{split}, source row {number}, variant {variant}"
            has_proof = same_tokenizer or what == "gold" or None not in (values[0], values[2])
            advice = "" if has_proof else "; with two tokenizers only texts are a proof"
            return [f"{key}: {what} {ours} in {first.root}, {theirs} in {other.root}{advice}"]
    return []


def _shown(target: Target, what: str, one: Any, other: Any) -> str:
    """Two sentences, or label and score, for people."""
    if what == "text":
        return " and ".join(repr(sentence) for sentence in (one, other) if sentence is not None) or "none"
    if one is None:
        return "none" if other is None else f"{other:g}"
    return repr(target.names[one]) if 0 <= one < target.num_logits else f"label {one}"

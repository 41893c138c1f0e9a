"""Variants of rows as tables, whatever the method: their keys, origins, texts and counts."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from pipeline.arrays import Ints
from pipeline.sources import sentences
from teacher.augment.method import Editor, Sides
from teacher.augment.words import Edited

SCHEMA = pa.schema(
    [
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("variant", pa.int32(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("sentence1", pa.string(), nullable=False),
        pa.field("sentence2", pa.string()),
        pa.field("changed", pa.int32(), nullable=False),
        pa.field("words", pa.int32(), nullable=False),
    ]
)


def make_variants(rows: pa.Table, editor: Editor, sides: Sides) -> pa.Table:
    """Makes all variants of some rows.

    Args:
        rows: source rows.
        editor: how to change a sentence.
        sides: which sentences each variant changes.

    Returns:
        The variants with the columns of ``SCHEMA``, by source row and number; those that the editor gives up are left
        out, those that equal their original are not.
    """
    texts = [text for text in sentences(rows) if text is not None]
    source_rows = rows.column("source_row").to_numpy()
    edited = [_edit(editor, texts, source_rows, side, sides) for side in range(len(texts))]
    made = []
    for n, row in enumerate(source_rows.tolist()):
        for variant, changes in enumerate(sides, start=1):
            parts = [edited[side][variant][n] for side in changes]
            done = [part for part in parts if part is not None]
            if len(done) < len(parts):
                continue
            pair = [text[n] for text in texts] + [None] * (2 - len(texts))
            for side, part in zip(changes, done, strict=True):
                pair[side] = part.text
            counts = (sum(part.changed for part in done), sum(part.words for part in done))
            made.append((row, variant, _origin(done), *pair, *counts))
    columns = zip(*made, strict=True) if made else ([] for _ in SCHEMA)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def _edit(
    editor: Editor, texts: list[list[str]], source_rows: Ints, side: int, sides: Sides
) -> dict[int, list[Edited | None]]:
    """For each variant that changes one side, that side of every row."""
    variants = np.array([number for number, changes in enumerate(sides, start=1) if side in changes], dtype=np.int64)
    edited = editor.edit(texts[side], source_rows, side, variants)
    return {variant: [row[v] for row in edited] for v, variant in enumerate(variants.tolist())}


def _origin(parts: Iterable[Edited]) -> str:
    """What was done to a row: ``tinybert``, ``mask``, ``pos``, ``mask-pos``, or ``ngram`` for a cut alone."""
    kinds = set().union(*(part.kinds for part in parts))
    return "-".join(sorted(kinds - {"ngram"})) or "ngram"

"""What codecs are given of a file that can be read: any numbers of the right types."""

from typing import Any

import atheris
import pyarrow as pa

from pipeline.logit_set.record import read_set_record
from pipeline.logit_set.token_reader import TokenSet
from pipeline.logit_set.tokens import split_table
from pipeline.logit_set.verify_tokens import group_problem
from tests.fuzz.files import FIXTURES

COVERS = (
    "pipeline.logit_set.verify_tokens",
    *(f"pipeline.logit_set.codecs.{name}" for name in ("dense", "hidden", "sampled", "topk")),
)
NAMES = ("dense", "hidden", "sampled", "topk")
SETS = {name: TokenSet(FIXTURES / name, read_set_record(FIXTURES / name)) for name in NAMES}
DECODER = SETS["hidden"].decoder()
SEEDS = [bytes([number]) + bytes(range(200)) for number in range(len(NAMES))]


def values(kind: pa.DataType, draw: Any, width: int) -> Any:
    """One value of an Arrow type; lists are mostly as long as they should be."""
    if pa.types.is_list(kind):
        length = draw.ConsumeIntInRange(0, 3) if draw.ConsumeBool() else width
        return [values(kind.value_type, draw, width) for _ in range(length)]
    if pa.types.is_integer(kind):
        return (
            draw.ConsumeIntInRange(0, 2 ** min(kind.bit_width, 31) - 1)
            if draw.ConsumeBool()
            else draw.ConsumeIntInRange(0, 4)
        )
    return draw.ConsumeFloat() if pa.types.is_floating(kind) else "train"


def read(data: bytes) -> None:
    draw = atheris.FuzzedDataProvider(data[1:])
    token_set = SETS[NAMES[(data[0] if data else 0) % len(NAMES)]]
    schema = token_set.record.arrow_schema()
    rows = draw.ConsumeIntInRange(0, 3)
    table = pa.table(
        [pa.array([values(field.type, draw, 2) for _ in range(rows)], field.type) for field in schema], schema
    )
    if not group_problem(token_set.record, table) and rows:
        _, columns = split_table(table)
        token_set.record.codec.decode(columns, 1.0, DECODER)

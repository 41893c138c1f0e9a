"""What codecs are given of a file that can be read: any numbers of the right types."""

from typing import Any

import atheris
import pyarrow as pa
import torch

from pipeline.sets.codecs.codec import Decoder
from pipeline.sets.kinds import kind_of
from pipeline.sets.record import SetRecord, read_set_record
from tests.fuzz.files import FIXTURES

COVERS = (
    "pipeline.sets.kinds.masked_words",
    *(f"pipeline.sets.codecs.{name}" for name in ("dense", "hidden", "sampled", "topk")),
)
NAMES = ("dense", "hidden", "sampled", "topk")
WIDTH = 2  # of every list: tokens, masked positions, the vocabulary, hidden states, K and N
SIZES = ("vocabulary_size", "hidden_size", "num_samples", "top_k")
DECODER = Decoder(torch.ones(WIDTH, WIDTH), torch.zeros(WIDTH))
SEEDS = [bytes([number]) + bytes([value] * 64) for number in range(len(NAMES)) for value in (0, 3, 60)]


def small(name: str) -> SetRecord:
    """The record of a set whose codec and tokenizer have so few tokens that numbers fit by chance."""
    record = read_set_record(FIXTURES / name)
    codec = record.codec.model_copy(update={size: WIDTH for size in SIZES if hasattr(record.codec, size)})
    assert record.signals.mlm is not None
    signals = record.signals.model_copy(update={"mlm": record.signals.mlm.model_copy(update={"codec": codec})})
    tokenizer = record.tokenizer.model_copy(update={"vocabulary_size": WIDTH})
    return record.model_copy(update={"signals": signals, "tokenizer": tokenizer})


SETS = [(record, record.arrow_schema()) for record in map(small, NAMES)]


def values(kind: pa.DataType, draw: Any) -> Any:
    """One value of an Arrow type; most lists are as long as they should be, and most numbers small."""
    chosen = draw.ConsumeIntInRange(0, 15)
    if isinstance(kind, pa.ListType):
        return [values(kind.value_type, draw) for _ in range(chosen - 12 if chosen > 12 else WIDTH)]
    if kind == pa.float32():
        return draw.ConsumeFloat() if chosen > 12 else chosen / 4
    if kind == pa.string():
        return "train"
    return draw.ConsumeIntInRange(0, 2 ** min(kind.bit_width, 31) - 1) if chosen > 12 else chosen % (WIDTH + 1)


def read(data: bytes) -> None:
    draw = atheris.FuzzedDataProvider(data[1:])
    record, schema = SETS[(data[0] if data else 0) % len(SETS)]
    rows = range(draw.ConsumeIntInRange(0, 3))
    columns = [pa.array([values(field.type, draw) for _ in rows], field.type) for field in schema]
    table = pa.table(columns, schema)
    if not kind_of(record).problem(record, record.shards[0], table) and rows:
        positions = {name: table.column(name).combine_chunks().flatten() for name in record.codec.fields()}
        record.codec.decode(positions, 1.0, DECODER)

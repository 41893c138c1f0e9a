"""``distill budget --corpus``: measures codecs on a small set from the teacher, and estimates the whole size."""

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy.special import log_softmax

from pipeline import console
from pipeline.arrays import Floats, Ints
from pipeline.devices import processes
from pipeline.flat_settings import given
from pipeline.sets.budget import Line, budget
from pipeline.sets.codecs.vectors import ROUNDING, fit_basis, state_codec
from pipeline.sets.kinds.masked_words import MaskedWordSet
from pipeline.sets.layers import group_writer
from pipeline.sets.record_parts import LayersName
from pipeline.sets.signals import LayerSignal, States
from pipeline.settings import flags
from pipeline.sources import Source, load_source, sentences
from pipeline.tasks.task import TRAIN, Task, load_task
from teacher.augment.methods import METHODS, default_method
from teacher.budget_settings import BudgetCorpus, BudgetTask
from teacher.corpus.text import estimate_size, masking_plan, nothing_to_mask, open_text
from teacher.dump.kept_layers import BLOCKS, STATES
from teacher.dumps import dump
from teacher.models.batches import tokens_per_batch
from teacher.models.encoder import load_encoder
from teacher.models.layer_outputs import layer_outputs, require_known_family
from teacher.models.loaded import inference_mode, load_config
from teacher.models.masked_lm import load_mlm_tokenizer
from teacher.settings import DumpSettings

# Margin, because the number of positions per document is only estimated.
SPARE = 1.2


def corpus_budget(config: BudgetCorpus) -> list[Line]:
    """Returns size and loss of each codec on a corpus, measured on the teacher's outputs for its start.

    Raises:
        DataError: if the corpus has no text of the required lengths, or too little.
    """
    length = config.forward.max_seq_length
    text = open_text(config, length)
    tokens = load_mlm_tokenizer(*config.teacher.teacher_for(text.corpus), length)
    size = estimate_size(text, tokens, masking_plan(text, tokens, config.masking, config.masking.num_copies))
    if not text.count(TRAIN, 0, size.documents):
        raise nothing_to_mask(text, "its training split")
    # One of so many documents, starting with the first, is in the validation split.
    every = config.validation_every
    documents = math.ceil(SPARE * config.positions * size.documents / size.positions * every / (every - 1)) + 1
    with tempfile.TemporaryDirectory() as folder:
        sample = {name: value for name, value in given(config).items() if name in flags(DumpSettings)}
        # The codec `hidden` is lossless, so all other codecs can be computed from this one dump.
        sample |= {"max_documents": min(documents, size.documents), "codec": "hidden"}
        dump(DumpSettings.from_flags(**sample, store=Path(folder), name="control"), "distill budget")
        return budget(MaskedWordSet.open(Path(folder) / "control"), config.positions, size.positions)


DIMS = (16, 32, 64, 128, 256)  # of pca, up to half of the hidden size
# Every fifth row is measured. Bases are fitted to the others, so that the measured loss is unbiased.
EVERY = 5


@dataclass(frozen=True)
class LayerLine:
    """The size and the loss of a codec of a layer.

    Attributes:
        signal: the signal.
        layer: the number of the layer.
        codec: the codec.
        bytes_per_row: the size in the files, including all columns.
        task_bytes: the size of all of the task's own rows.
        lost: for states the lost share of their variance. For attention and values the divergence of the stored softmax
            from the teacher's, in nats, as a mean over heads and tokens. None if all states are the same, such as those
            of ``[CLS]`` in layer 0.
    """

    signal: str
    layer: int
    codec: str
    bytes_per_row: float
    task_bytes: float
    lost: float | None


def layer_budget(config: BudgetTask) -> list[LayerLine]:
    """Measures every codec on evenly spread training rows, for each layer.

    Raises:
        ConfigError: if the teacher lacks one of the layers.
        TeacherError: if layers of this type of teacher are not supported.
    """
    forward = config.forward
    task = load_task(config.task, config.manifest)
    source = load_source(task, config.data, ())
    name, revision = config.teacher.teacher_for(task)
    shape = load_config(name, revision)
    require_known_family(name, shape.model_type)
    asked = {one.name: one.numbers(int(shape.num_hidden_layers)) for one in config.layers.signals}
    encoder, device = load_encoder(name, revision, forward.max_seq_length, "mean"), processes().device
    encoder.model.to(device)
    own = source.own(TRAIN if TRAIN in source.splits else next(iter(source.splits)))
    places = np.linspace(0, own.num_rows - 1, min(own.num_rows, config.sample)).astype(np.int64)
    inputs = list(encoder.reader.tokenize(*sentences(own.take(pa.array(places))), forward.max_seq_length))
    num_rows = sum(source.own(split).num_rows for split in source.splits)
    _tell_of_variants(task, num_rows, source)
    length_R = np.array([len(row.ids) for row in inputs], dtype=np.int64)
    width, heads = int(shape.hidden_size), int(shape.num_attention_heads)
    # One layer per pass: the outputs of all layers at once would not fit into memory.
    passes = [(name, layer) for name, layers in asked.items() for layer in layers]
    lines = []
    with console.progress(len(passes) * len(inputs), "teacher: layers") as steps:
        for name, layer in passes:
            wanted: dict[LayersName, tuple[int, ...]] = {name: (layer,)}
            with inference_mode(device, forward.precision):
                outputs = layer_outputs(encoder, inputs, wanted, tokens_per_batch(device), steps.advance)
            signals = candidates(wanted, width, heads)
            lines += [measured_line(signal, outputs[name][layer], length_R, num_rows) for signal in signals]
    return lines


def _tell_of_variants(task: Task, num_rows: int, source: Source) -> None:
    """Returns a note about the variants that a dump adds by default, and whose layers it can store."""
    method = default_method(task)
    if method is None or TRAIN not in source.splits:
        return
    usual = METHODS[method]()
    added = source.own(TRAIN).num_rows * len(usual.sides(task.is_pair, usual.variants_of(task)))
    console.note(
        f"{task.name}: these are bytes of its own {num_rows:,} rows, for which a dump stores layers by default. "
        f"--layers-of all adds those of up to {added:,} variants by {method}: up to "
        f"{(num_rows + added) / num_rows:.1f} times as much"
    )


def candidates(asked: dict[LayersName, tuple[int, ...]], width: int, heads: int) -> Iterator[LayerSignal]:
    """Returns all codecs of the signals, for a teacher of this width and with so many heads."""
    for name, layers in asked.items():
        if name in STATES:
            pca = [f"pca-{dims}" for dims in DIMS if 2 * dims <= width]
            for codec in ("float32", "float16", "int8", *reversed(pca)):
                yield STATES[name](layers=layers, codec=state_codec(codec, width))
        else:
            yield BLOCKS[name](layers=layers, heads=heads, codec="float32")
            yield BLOCKS[name](layers=layers, heads=heads, codec="u8")


def measured_line(signal: LayerSignal, outputs: Sequence[Floats], length_R: Ints, num_rows: int) -> LayerLine:
    """Fits a basis to most rows, if one is needed, and measures it on the others."""
    (layer,) = signal.layers
    is_measured_R = (
        np.arange(len(outputs)) % EVERY == EVERY - 1 if len(outputs) >= EVERY else np.ones(len(outputs), dtype=bool)
    )
    measured = [block for block, is_measured in zip(outputs, is_measured_R, strict=True) if is_measured]
    bases = {}
    if isinstance(signal, States) and signal.codec.basis_bytes:
        # Fitted on the rows that are not measured: on its own rows a basis looks better than it is.
        others = [block for block, is_measured in zip(outputs, is_measured_R, strict=True) if not is_measured]
        bases = {layer: fit_basis(np.concatenate(others or measured), signal.codec.num_stored)}
    rows = np.flatnonzero(is_measured_R)
    keys = pa.table(
        {"split": ["train"] * len(rows), "source_row": rows, "variant": pa.array([0] * len(rows), pa.int32())}
    )
    table = signal.table(keys, length_R[is_measured_R], {layer: measured}, bases)
    back = signal.decode(signal.stored_in(table, layer), length_R[is_measured_R], bases.get(layer))
    lost = _share_lost(measured, back) if isinstance(signal, States) else _divergence(measured, back)
    # An empty file's header and footer are subtracted, since they hardly count in files of a whole set.
    size = (_file_bytes(signal, table) - _file_bytes(signal, table.slice(0, 0))) / len(rows)
    return LayerLine(signal.name, layer, signal.how, size, size * num_rows, lost)


def _share_lost(outputs: Sequence[Floats], back: Sequence[Floats]) -> float | None:
    output_TH, back_TH = np.concatenate(outputs), np.concatenate(back)
    variance = ((output_TH - output_TH.mean(axis=0, dtype=np.float64)) ** 2).sum()
    is_constant = variance <= ROUNDING * (output_TH.astype(np.float64) ** 2).sum()
    return None if is_constant else float(((output_TH - back_TH) ** 2).sum() / variance)


def _divergence(outputs: Sequence[Floats], back: Sequence[Floats]) -> float:
    """Returns the mean over rows, heads and tokens of KL(the teacher's softmax ‖ the stored one), in nats."""
    nats = []
    for output_ALL, back_ALL in zip(outputs, back, strict=True):
        log_p, log_q = (log_softmax(block.astype(np.float64), axis=2) for block in (output_ALL, back_ALL))
        nats.append((np.exp(log_p) * (log_p - log_q)).sum(axis=2).ravel())
    return float(np.concatenate(nats).mean())


def _file_bytes(signal: LayerSignal, table: pa.Table) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sample.parquet"
        with group_writer(path, signal, {}) as write:
            write(table)
        return path.stat().st_size

"""Stage one on a corpus: writes a masked LM's predictions at masked positions as a set of masked words.

Shapes: R rows, P masked positions, H hidden size, V vocabulary.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from transformers import AutoModelForMaskedLM

from pipeline.devices import processes
from pipeline.errors import TeacherError
from pipeline.files import require_space
from pipeline.sets.codecs import AnyCodec, BeyondHalfError, Codec, Predictions, codec_for
from pipeline.sets.codecs.codec import write_decoder
from pipeline.sets.files import Statistics
from pipeline.sets.kinds.masked_words import (
    MaskedRows,
    MaskedWordSet,
    draws,
    encode,
    no_statistics,
    rows_per_group,
    tokens_table,
)
from pipeline.sets.open import tokenizer_record
from pipeline.sets.record import Scores, SetRecord, staged
from pipeline.sets.record_parts import MaskingRecord, Setting, Shard, SplitRecord
from pipeline.sets.signals import Mlm, Signals
from teacher.corpus.sequences import Masked, MaskingPlan, Sequences, mask
from teacher.corpus.text import (
    SPLITS,
    Text,
    corpus_record,
    corpus_settings,
    document_shards,
    estimate_size,
    how_cut,
    masking_plan,
    nothing_to_mask,
    require_known_words,
)
from teacher.dump.estimate import Plan, memory_bytes, seconds_of
from teacher.dump.rows import LIBRARIES, teacher_record
from teacher.dump.shard_jobs import Advance, RowJob
from teacher.dump.teacher_dump import TeacherDump
from teacher.models.batches import LONGEST_SHOWN, run_batches
from teacher.models.loaded import load_config
from teacher.models.masked_lm import (
    MaskedLm,
    MlmTokenizer,
    decoder_of,
    load_masked_lm,
    load_mlm_tokenizer,
    predict_masked,
)
from teacher.settings import MaskedWordFlags, RunFlags, SetPlace

SAMPLED_ROWS = 256
PROBE_DOCUMENTS = 8


class MaskedWordsDump(TeacherDump):
    """A masked LM's predictions at masked positions of a corpus."""

    def __init__(self, text: Text, wanted: MaskedWordFlags, run: RunFlags, place: SetPlace, command: str) -> None:
        super().__init__(run, place, wanted.set_name(text.corpus.name), command)
        self.rows = self.text = text
        self.wanted = wanted

    @cached_property
    def model(self) -> MaskedLm:
        """The teacher, on the device."""
        name, revision = self.run.teacher.teacher_for(self.text.corpus)
        lm = load_masked_lm(name, revision, self.forward.max_seq_length)
        require_known_words(self.text, lm.tokens, lm.name)
        lm.model.to(self.device)
        return lm

    def masking(self, tokens: MlmTokenizer) -> MaskingPlan:
        """Returns the plan by which the corpus is masked."""
        return masking_plan(self.text, tokens, self.wanted, self.wanted.num_copies)

    @cached_property
    def masking_plan(self) -> MaskingPlan:
        """Returns the plan with the teacher's tokenizer."""
        return self.masking(self.model.tokens)

    @cached_property
    def codec(self) -> AnyCodec:
        """The codec of the predictions."""
        return codec_for(self.wanted.codec, *self.model.model.get_output_embeddings().weight.shape)

    def probe(self) -> None:
        """Also checks that the decoder has the same input and output as in the unchanged model."""
        plan = self.masking_plan
        stored = sum(file.stat().st_size for file in self.root.glob("masked_words/*.parquet"))
        require_space(
            self.root.parent, int(estimate_size(self.text, self.model.tokens, plan).num_bytes(self.codec)) - stored
        )
        with self.inference():
            _probe(self.text, self.model, plan)

    @cached_property
    def record(self) -> SetRecord:
        """The planned record. The fingerprint covers everything that determines the content."""
        text, lm, forward, wanted = self.text, self.model, self.forward, self.wanted
        corpus, documents = corpus_record(text), text.documents
        masking = MaskingRecord(
            kind=wanted.masking,
            probability=wanted.mlm_probability,
            num_copies=wanted.num_copies,
            seed=wanted.seed,
            mask_id=lm.tokens.mask_id,
        )
        teacher, tokenizer = teacher_record(lm), tokenizer_record(lm.tokens.tokenizer)
        # Blocks do not cross shards, so with blocks the size of shards decides the rows and is a setting.
        is_cut_at_sentences = text.flags.packing == "sentences"
        settings: dict[str, Setting] = {
            "signal": "mlm",
            "teacher.weights": teacher.sha256,
            "tokenizer": tokenizer.sha256,
            "precision": forward.precision,
            "documents": documents.sha256,
            **corpus_settings(corpus),
            "max_seq_length": forward.max_seq_length,
            "cut": how_cut() if is_cut_at_sentences else f"{self.rows_per_shard}",
            **{f"masking.{name}": value for name, value in masking.model_dump().items()},
            # Weights by frequency depend on the counted documents, so the settings alone do not fix them.
            "masking.weights": hashlib.sha256(self.masking_plan.weight_V.tobytes()).hexdigest(),
            "codec": str(self.codec),
        }
        described = SplitRecord(rows=documents.num_documents, rows_sha256=documents.sha256)
        return staged(
            settings,
            self.command,
            (*LIBRARIES, "sentencex"),
            name=self.root.name,
            kind="masked_words",
            signals=Signals(mlm=Mlm(codec=self.codec)),
            corpus=corpus,
            masking=masking,
            teacher=teacher,
            tokenizer=tokenizer,
            max_seq_length=forward.max_seq_length,
            precision=forward.precision,
            source=documents.description,
            splits=dict.fromkeys(SPLITS, described),
            shards=document_shards(text, self.rows_per_shard),
        )

    def start(self, record: SetRecord) -> None:
        if self.codec.needs_decoder and processes().is_main_process:
            with self.inference():
                write_decoder(self.root, decoder_of(self.model))

    def job(self, record: SetRecord) -> "MaskedWordsJob":
        return MaskedWordsJob(record, self.model, self.forward.precision, self.max_tokens, self.masking_plan)

    def scores(self, record: SetRecord) -> Scores:
        # A corpus without any masked position would give an empty but verified set.
        if not record.num_rows:
            shards = f"any shard of --rows-per-shard {self.rows_per_shard:,} documents, which no block crosses"
            raise nothing_to_mask(self.text, shards)
        return MaskedWordSet(self.root, record).scores()

    def plan(self) -> Plan:
        """Estimates from a sample of the corpus and the teacher's config, whose shape is timed on this machine."""
        text = self.text
        name, revision = self.run.teacher.teacher_for(text.corpus)
        tokens = load_mlm_tokenizer(name, revision, self.forward.max_seq_length)
        shape = load_config(name, revision)
        codec = codec_for(self.wanted.codec, shape.vocab_size, shape.hidden_size)
        masking = self.masking(tokens)
        size = estimate_size(text, tokens, masking)
        sample = _sample(text, tokens, masking)

        def make(shallow: Any) -> Callable[[], object]:
            lm = MaskedLm("plan", None, AutoModelForMaskedLM.from_config(shallow).eval().to(self.device), tokens)

            def run() -> object:
                with self.inference():
                    return encoded_predictions(lm, codec, sample, self.wanted.seed, self.max_tokens, no_statistics())

            return run

        return Plan(
            rows={"documents": size.documents, "masked sequences": size.rows, "masked positions": size.positions},
            shards=len(document_shards(text, self.rows_per_shard)),
            tokens=size.tokens,
            disk_bytes=int(size.num_bytes(codec)),
            seconds=seconds_of(shape, make) * size.tokens / len(sample.ids.flat),
            memory_bytes=memory_bytes(shape, self.max_tokens),
        )


def _sample(text: Text, tokens: MlmTokenizer, plan: MaskingPlan) -> MaskedRows:
    """Returns at most SAMPLED_ROWS masked rows of the first documents, which exist because the estimate found some."""
    stop = text.documents.num_documents
    parts = (part for split in reversed(SPLITS) for part in text.sequences(tokens, split, 0, stop))
    masked_parts = ((part, mask(part, plan)) for part in parts)
    sequences, masked = next((part, masked) for part, masked in masked_parts if len(masked.positions.flat))
    return rows_of(sequences, masked.take(np.arange(min(SAMPLED_ROWS, len(masked.sequence_R)))))


def _probe(text: Text, lm: MaskedLm, plan: MaskingPlan) -> None:
    """Checks, before the real work, that the last layer applied to the captured input gives the model's own logits."""
    stop = min(text.flags.validation_every * PROBE_DOCUMENTS, text.documents.num_documents)
    sequences = next(iter(text.sequences(lm.tokens, "validation", 0, stop)), None)
    if sequences is None:
        return
    masked = mask(sequences, plan)
    rows = list(range(min(8, len(masked.sequence_R))))
    if not rows:
        return
    hidden_PH, logits_PV = predict_masked(lm, masked.ids, masked.positions, rows)
    _check_finite(lm, logits_PV, int(sequences.source_row_N[0]))
    # The stored decoder is float32, so it is compared in float32 as well.
    with torch.autocast(logits_PV.device.type, enabled=False):
        again_PV = decoder_of(lm)(hidden_PH)
    difference = float((again_PV - logits_PV).abs().max() / logits_PV.abs().max())
    # The condition is negated so that NaN counts as a difference, too. 5 % leaves room for 16-bit rounding.
    if not difference < 0.05:
        raise TeacherError(
            f"teacher {lm.name}: its logits differ from those of its last layer (by {difference:.0%}). The "
            f"architecture of {type(lm.model).__name__} is not supported"
        )


def _check_finite(lm: MaskedLm, logits_PV: torch.Tensor, document: int) -> None:
    if not all(bound.isfinite() for bound in logits_PV.aminmax()):
        raise TeacherError(
            f"teacher {lm.name}: outputs NaN or Inf near document {document}. fp16 overflows with some models. "
            "Try --precision bf16 or fp32"
        )


@dataclass(frozen=True)
class MaskedWordsJob(RowJob[Sequences]):
    """Writes masked words."""

    model: MaskedLm
    masking: MaskingPlan

    def count(self, rows: Text, shard: Shard) -> int:
        return rows.count(shard.split, shard.start, shard.stop)

    def read(self, rows: Text, shard: Shard) -> Iterator[Sequences]:
        return rows.sequences(self.model.tokens, shard.split, shard.start, shard.stop)

    def tables(
        self, rows: Text, shard: Shard, batches: Iterator[Sequences], advance: Advance, statistics: Statistics
    ) -> Iterator[pa.Table]:
        statistics |= no_statistics()
        codec, size, done = self.record.codec, rows_per_group(self.record.codec), shard.start
        for sequences in batches:
            masked = mask(sequences, self.masking)
            for start in range(0, len(masked.sequence_R), size):
                part = masked.take(np.arange(start, min(start + size, len(masked.sequence_R))))
                group = rows_of(sequences, part)
                columns = encoded_predictions(self.model, codec, group, self.masking.seed, self.max_tokens, statistics)
                yield tokens_table(codec, shard.split, group, columns)
            now = int(sequences.source_row_N[-1]) + 1
            advance(rows.count(shard.split, done, now))
            done = now
        advance(rows.count(shard.split, done, shard.stop))

    def summary(self, root: Path, shard: Shard, statistics: Statistics) -> str:
        if not statistics["positions"]:
            return ""
        size = (root / shard.path).stat().st_size / statistics["positions"]
        mass = statistics["kept_mass"] / statistics["positions"]
        return f", last: {size:.1f} bytes per position, {mass:.1%} of the probability stored"


def rows_of(sequences: Sequences, masked: Masked) -> MaskedRows:
    """Returns masked copies of sequences, with their keys."""
    return MaskedRows(
        sequences.source_row_N[masked.sequence_R],
        sequences.piece_N[masked.sequence_R],
        masked.copy_R,
        masked.ids,
        masked.positions,
        masked.targets,
    )


def encoded_predictions(
    lm: MaskedLm, codec: Codec, rows: MaskedRows, seed: int, max_tokens: int, statistics: Statistics
) -> dict[str, pa.Array]:
    """Returns a masked LM's predictions at the masked positions, in the codec's columns, with a value per row.

    Call it inside `inference_mode`. ``statistics`` receive the sums over predictions.
    """
    random_P = draws(rows, seed)
    place_R = rows.positions.offsets
    pieces: list[dict[str, pa.Array]] = []
    order: list[np.ndarray] = []

    def run(batch: list[int]) -> None:
        # Batches contain rows in order of length, so random numbers and targets are looked up by position.
        place_P = np.concatenate([np.arange(place_R[row], place_R[row + 1]) for row in batch])
        hidden_PH, logits_PV = predict_masked(lm, rows.ids, rows.positions, batch)
        _check_finite(lm, logits_PV, int(rows.source_row_R[batch[0]]))
        random_B = torch.from_numpy(random_P[place_P]).to(logits_PV.device)
        target_B = torch.from_numpy(rows.targets.flat[place_P]).to(logits_PV.device)
        try:
            columns = encode(codec, Predictions(logits_PV, hidden_PH, random_B), target_B, statistics)
        except BeyondHalfError as error:
            row = int(np.searchsorted(place_R, place_P[error.position], side="right")) - 1
            text = lm.tokenizer.decode(rows.ids[row].tolist(), skip_special_tokens=False)
            named = f"document {rows.source_row_R[row]}, {text[:LONGEST_SHOWN]!r}"
            raise TeacherError(f"{named}: teacher {lm.name}, codec {codec}: {error}") from error
        pieces.append(columns)
        order.append(place_P)

    run_batches([length + lm.tokens.num_special for length in rows.ids.lengths.tolist()], max_tokens, run)
    # Batches are sorted by length, and files need the order of the keys.
    back = pa.array(np.argsort(np.concatenate(order), kind="stable"))
    return {name: pa.concat_arrays([piece[name] for piece in pieces]).take(back) for name in pieces[0]}

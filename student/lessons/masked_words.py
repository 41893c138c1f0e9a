"""Students that are pretrained on masked words of a corpus: batches, task, scores, and the gain from context.

Shapes: B rows of a batch, L tokens, P masked positions, F features, V vocabulary.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from torch import nn
from torch.nn import functional

from pipeline.arrays import Ints, Ragged
from pipeline.devices import has_fast_bf16, to_device
from pipeline.errors import FingerprintMismatchError
from pipeline.record_file import Record
from pipeline.sets.codecs import Distribution
from pipeline.sets.kinds.masked_words import MaskedRows, MaskedWordSet, masked_rows, perplexity, split_table
from pipeline.sets.open import Group
from pipeline.training.run_record import Metrics
from student.lessons.pretraining import GroupBatches, PretrainTask, card_text, first_batches
from student.losses.masked_words import CHUNK, HeadPass, cross_entropy
from student.model.pretrained import MaskedWordStudent, build_masked_word_config
from student.model.student import default_device
from student.pretrain_settings import PretrainSettings
from student.row_adam import rows_of_batch
from student.vocabulary import in_vocabulary

if TYPE_CHECKING:
    from accelerate import PartialState


@dataclass(frozen=True)
class MaskedBatch:
    """Masked sequences, and the teacher's predictions at their masked positions.

    Attributes:
        ids_BL: int64, padded at the end.
        row_P: int64, a position's row.
        place_P: int64, its position in the row.
        target_P: int64, the masked tokens.
        predictions: the codec's columns, an entry per position.
    """

    ids_BL: torch.Tensor
    row_P: torch.Tensor
    place_P: torch.Tensor
    target_P: torch.Tensor
    predictions: dict[str, pa.Array]

    def __len__(self) -> int:
        return len(self.row_P)


@dataclass(frozen=True)
class Pool:
    """Row groups in memory.

    Attributes:
        rows: masked sequences.
        predictions: the codec's columns, an entry per position of all rows.
        pad_id: the id that pads shorter sequences of a batch.
    """

    rows: MaskedRows
    predictions: dict[str, pa.Array]
    pad_id: int

    @property
    def lengths(self) -> Ints:
        """Tokens per row."""
        return self.rows.ids.lengths

    def batch(self, rows: list[int]) -> MaskedBatch:
        """Returns the batch of some of its rows, with all their masked positions."""
        positions = self.rows.positions
        places = Ragged(np.arange(len(positions.flat)), positions.offsets).take(rows)
        chosen_P = places.flat
        indices = pa.array(chosen_P)
        return MaskedBatch(
            torch.from_numpy(self.rows.ids.padded(rows, self.pad_id)),
            torch.from_numpy(np.repeat(np.arange(len(rows)), places.lengths)),
            torch.from_numpy(positions.flat[chosen_P]),
            torch.from_numpy(self.rows.targets.flat[chosen_P]),
            {name: column.take(indices) for name, column in self.predictions.items()},
        )


def read_pool(token_set: MaskedWordSet, pad_id: int, groups: list[Group]) -> Pool:
    """Reads row groups into memory. Shorter sequences of a batch are padded with ``pad_id``."""
    table = pa.concat_tables([token_set.read_group(group) for group in groups])
    return Pool(*split_table(table), pad_id)


def masked_batches(
    token_set: MaskedWordSet, pad_id: int, batch_size: int, seed: int, num_processes: int = 1, rank: int = 0
) -> GroupBatches[MaskedBatch]:
    """Returns the batches of a set's train split."""
    return GroupBatches(token_set, partial(read_pool, token_set, pad_id), batch_size, seed, num_processes, rank)


class MaskedWordTask(PretrainTask[MaskedBatch, MaskedWordStudent]):
    """A student and its set of masked words for pretraining and scores.

    Args:
        settings: the settings.
        root: the set, with a train split for training and a validation split for scores.
        state: this process and the others.

    Raises:
        ConfigError: naming every flag that does not fit, including the temperature if the set's codec does not support
            it.
    """

    student_type = MaskedWordStudent

    def __init__(self, settings: PretrainSettings, root: Path, state: "PartialState") -> None:
        token_set = MaskedWordSet.open(root, settings.allow_unverified)
        settings.check_kind(token_set.record.kind)
        in_vocabulary([token_set], settings.vocabulary, needs_teachers="a set of masked words")
        token_set.check_temperature(settings.temperature)
        student_config = build_masked_word_config(settings.encoder, token_set.record)
        sizes = (settings.per_device_train_batch_size, settings.seed, state.num_processes, state.process_index)
        batches = masked_batches(token_set, student_config.pad_id, *sizes)
        super().__init__(settings, token_set, student_config, batches, state)
        self._set, self._decoder = token_set, token_set.decoder()
        self._alpha, self._temperature = settings.alpha, settings.temperature
        self.of_set = {
            "codec": json.loads(token_set.record.codec.model_dump_json()),
            "precision": "bf16" if has_fast_bf16() else "fp32",
        }

    def start(self) -> None:
        """Makes the student, whose head starts from the frequencies of words, and its optimizer."""
        super().start()
        self._log_frequency_V = log_frequencies(self._set)
        start_without_context(self.model.head, self._log_frequency_V)
        self._head = HeadPass(self.model.head, torch.bfloat16 if has_fast_bf16() else torch.float32)

    def loss(self, batch: MaskedBatch) -> torch.Tensor:
        """Returns the mean loss of a position, which is later averaged over all processes."""
        student, state = self.model, self._state
        inputs = (to_device(part, state.device) for part in (batch.ids_BL, batch.row_P, batch.place_P))
        features_PF = student(*inputs, rows_of_batch(self.optimizer, student.encoder, batch.ids_BL.flatten()))
        positions = torch.tensor(float(len(batch)), device=state.device)
        if state.num_processes > 1:
            from accelerate.utils import reduce

            positions = reduce(positions, reduction="mean")
        codec = self._set.record.codec

        def teacher_of(part: slice) -> Distribution:
            columns = {name: column[part] for name, column in batch.predictions.items()}
            return codec.decode(columns, self._temperature, self._decoder)

        target_P = to_device(batch.target_P, state.device)
        softness = (self._alpha, self._temperature)
        return self._head.loss(features_PF, target_P, teacher_of, *softness, 1 / positions)

    def evaluate(self) -> Metrics:
        # Every process computes all scores.
        return scores_and_control(self.model, self._set, self._log_frequency_V)

    def card(self, record: Record) -> str:
        own = {
            "num_outputs": f"{self.model.config.num_outputs:,}",
            "codec": str(self.opened.record.codec),
        }
        return card_text("card_masked_words.md", "fill-mask", self.model, record, self.opened.record, own)


def log_frequencies(token_set: MaskedWordSet) -> torch.Tensor:
    """Returns the log of each token's share of the masked words for training, with counts increased by one: [V].

    Raises:
        IntegrityError: if a shard does not match the record.
    """
    count_V = np.ones(token_set.record.codec.vocabulary_size, dtype=np.int64)
    for shard in token_set.shards("train"):
        for table in token_set.read_shard(shard):
            count_V += np.bincount(masked_rows(table).targets.flat, minlength=len(count_V))
    return torch.from_numpy(np.log(count_V / count_V.sum())).float()


@torch.no_grad()
def start_without_context(head: nn.Linear, log_frequency_V: torch.Tensor) -> None:
    """Makes a head predict the frequencies for every input: they are its bias, and its weights are 0."""
    head.weight.zero_()
    head.bias.copy_(log_frequency_V)


def evaluate_masked_words(run: Path, root: Path, allow_unverified: bool) -> Metrics:
    """Evaluates a run pretrained on masked words on the validation split of a set.

    Args:
        run: the folder of the run.
        root: the folder of the set.
        allow_unverified: also accept a set that is complete but not verified.

    Returns:
        The scores of `evaluate_mlm` under ``validation`` and those of `control` under ``control``.

    Raises:
        FingerprintMismatchError: if the set's ids belong to another tokenizer.
    """
    student = MaskedWordStudent.load(run).to(default_device())
    token_set = MaskedWordSet.open(root, allow_unverified)
    if token_set.record.tokenizer.sha256 != student.config.tokenizer_sha256:
        raise FingerprintMismatchError(
            f"{token_set.root}: its token ids belong to another tokenizer than the student's"
        )
    return scores_and_control(student, token_set, log_frequencies(token_set))


def scores_and_control(
    student: MaskedWordStudent, token_set: MaskedWordSet, log_frequency_V: torch.Tensor
) -> dict[str, dict[str, float]]:
    """Returns the scores of `evaluate_mlm` on held-out rows, and the results of `control`."""
    return {
        "validation": evaluate_mlm(student, token_set, "validation"),
        "control": control(student, token_set, log_frequency_V),
    }


@torch.no_grad()
def evaluate_mlm(student: MaskedWordStudent, token_set: MaskedWordSet, split: str) -> dict[str, float]:
    """Scores a pretrained student on at most so many rows of a split.

    Returns: ``masked_accuracy``, ``gold_loss`` and ``perplexity`` of the masked tokens, and ``teacher_loss``, the
        cross-entropy with the teacher at the codec's own temperature, in nats. Empty if the split has no row.
    """
    student.eval()
    codec, decoder = token_set.record.codec, token_set.decoder()
    temperature = codec.stored_temperature
    right, gold, soft, positions = 0, 0.0, 0.0, 0
    for part in scored_positions(student, token_set, split):
        logits_PV = head_logits(student, part.features_PF)
        teacher = codec.decode(part.predictions, temperature, decoder).to(student.device)
        right += int((logits_PV.argmax(dim=1) == part.target_P).sum())
        gold += float(functional.cross_entropy(logits_PV, part.target_P, reduction="sum"))
        soft += float(cross_entropy(logits_PV / temperature, [(1, teacher)])[0].sum())
        positions += len(part.target_P)
    if not positions:
        return {}
    return {
        "masked_accuracy": right / positions,
        "gold_loss": gold / positions,
        "perplexity": perplexity(gold / positions),
        "teacher_loss": soft / positions,
    }


@dataclass(frozen=True)
class ScoredPositions:
    """Some masked positions, at most `CHUNK` of them.

    Attributes:
        features_PF: float32, the input of the student's head.
        target_P: int64, the masked tokens.
        predictions: the codec's columns.
    """

    features_PF: torch.Tensor
    target_P: torch.Tensor
    predictions: dict[str, pa.Array]


@torch.no_grad()
def scored_positions(student: MaskedWordStudent, token_set: MaskedWordSet, split: str) -> Iterator[ScoredPositions]:
    """Yields the masked positions of the first `SCORED_ROWS` rows of a split, in order."""
    for batch in first_batches(token_set, split, partial(read_pool, token_set, student.config.pad_id)):
        target_P = batch.target_P.to(student.device)
        features_PF = student(*(ids.to(student.device) for ids in (batch.ids_BL, batch.row_P, batch.place_P)))
        for low in range(0, len(features_PF), CHUNK):
            part = slice(low, low + CHUNK)
            predictions = {name: column[part] for name, column in batch.predictions.items()}
            yield ScoredPositions(features_PF[part], target_P[part], predictions)


@torch.no_grad()
def head_logits(student: MaskedWordStudent, features_PF: torch.Tensor) -> torch.Tensor:
    """Returns logits_PV, float32. The product is in bf16 where that is fast, as in training."""
    dtype = torch.bfloat16 if has_fast_bf16() else torch.float32
    return (features_PF.to(dtype) @ student.head.weight.to(dtype).T).float() + student.head.bias


def control(student: MaskedWordStudent, token_set: MaskedWordSet, log_frequency_V: torch.Tensor) -> dict[str, float]:
    """Returns losses of predictions of masked words without their context, at the held-out positions.

    Args:
        student: a pretrained student.
        token_set: the set.
        log_frequency_V: of `log_frequencies`.

    Returns: In nats ``unigram_loss``, with the frequencies of training words. ``mean_features_loss`` and
        ``other_features_loss`` of the student, if each position has the mean of all features or those of a random other
        position. ``context_gain``, the difference of the first loss and the student's own. Empty if the split has no
        row.
    """
    student.eval()
    sum_F, positions = torch.zeros(student.head.in_features, dtype=torch.float64, device=student.device), 0
    for part in scored_positions(student, token_set, "validation"):
        sum_F += part.features_PF.double().sum(dim=0)
        positions += len(part.features_PF)
    if not positions:
        return {}
    mean_F = (sum_F / positions).float()
    mean_1V, unigram_1V = head_logits(student, mean_F[None]), log_frequency_V.to(student.device)[None]
    random, sums = np.random.default_rng(0), np.zeros(4)
    for part in scored_positions(student, token_set, "validation"):
        target_P = part.target_P
        other_PF = part.features_PF[torch.from_numpy(others(len(target_P), random))]
        logits = (
            unigram_1V.expand(len(target_P), -1),
            mean_1V.expand(len(target_P), -1),
            head_logits(student, other_PF),
            head_logits(student, part.features_PF),
        )
        sums += [float(functional.cross_entropy(logits_PV, target_P, reduction="sum")) for logits_PV in logits]
    unigram, mean, other, own = (sums / positions).tolist()
    return {
        "unigram_loss": unigram,
        "mean_features_loss": mean,
        "other_features_loss": other,
        "context_gain": unigram - own,
    }


def others(number: int, random: np.random.Generator) -> Ints:
    """Returns for each position a random other one, each once: [P]. A single position gets itself."""
    order = random.permutation(number)
    other_P = np.empty_like(order)
    other_P[order] = np.roll(order, 1)
    return other_P

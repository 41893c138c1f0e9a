"""Stage two on labelled words: a student from the stored logits of every token. Shapes: T tokens, C logits."""

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from pipeline import console
from pipeline.devices import to_device
from pipeline.errors import DataError
from pipeline.files import write_text
from pipeline.sets.reader import find_set
from pipeline.sets.record import TOKENIZER_FILE, read_set_record
from pipeline.sets.token_vectors import VocabularyVectors, read_token_vectors
from pipeline.sets.word_reader import LabelledWords, TokenLabelSet
from pipeline.tasks.spans import word_scores
from pipeline.tasks.target import NO_LABEL
from pipeline.tasks.task import TRAIN
from pipeline.text.word_pieces import Pieces
from pipeline.training.joint import BatchedTask
from pipeline.training.loop import TrainOptimizer, fit, seed_step
from pipeline.training.run import Run
from pipeline.training.run_record import TEXT_COLUMNS, Entry, Metrics, RunRecord, best_of
from student.config import TrainConfig
from student.data import make_batches
from student.fit import epochs, note_slow_kernels
from student.losses.logits import task_loss
from student.model.architecture import TokenLabelConfig
from student.model.card import CARD_FILE
from student.model.model import default_device
from student.optimizer import make_optimizer, rows_of_batch
from student.run_result import NO_DEV
from student.start import copy_embeddings, source_sha256, start_from_teacher, starts_from_teacher
from student.vocabulary_pruning import active_ids, neutralise_untrained, prune, renumbered, restore, with_used_rows
from student.words.card import card_text
from student.words.design import build_token_label_config
from student.words.evaluate import evaluate_split, logits_of_tokens, tokens_of
from student.words.model import Tagger

LIBRARIES = ("distill-offline", "torch", "pyarrow", "tokenizers")


def is_of_words(config: TrainConfig) -> bool:
    """Whether the one set that is to be trained from is a set of words."""
    names = [*config.set, *([config.task] if config.task else [])]
    return len(names) == 1 and read_set_record(find_set(names[0], config.store)).kind == "token_labels"


def train_words(config: TrainConfig, command: str) -> RunRecord:
    """Trains the student of words that ``config`` describes, or goes on with it.

    Returns:
        The content of ``run.json``, as of `student.fit.train`.

    Raises:
        ConfigError: naming every flag that does not fit.
        DataError: if the set has no train split.
        FingerprintMismatchError: if the folder holds a run with other settings.
    """
    words = TokenLabelSet.open(find_set((config.set or (config.task or "",))[0], config.store), config.allow_unverified)
    if TRAIN not in words.splits:
        raise DataError(f"{words.root}: has no train split; its splits are {', '.join(words.splits)}")
    if words.splits == (TRAIN,):
        console.warn(f"{words.root}: {NO_DEV}")
    student_config = build_token_label_config(config, words)
    config = config.for_rows(words.record.splits[TRAIN].rows)
    is_from_teacher = config.init_from is None and starts_from_teacher(config, words.root, words.record)
    vectors = read_token_vectors(words.root, words.record) if is_from_teacher else None
    folder = config.output_dir or Path("runs") / words.root.resolve().name
    context: dict[str, Any] = {"logit_sets": [str(words.root.resolve())]}
    if words.record.task is not None and words.record.task.text_columns is not None:
        context[TEXT_COLUMNS] = [list(names) for names in words.record.task.text_columns]
    run = Run(folder, _settings(config, student_config, words, vectors), command, context)
    finished = run.start()
    if finished is not None:
        return finished
    write_text(folder / TOKENIZER_FILE, words.tokenizer_json())
    splits = {split: words.read(split) for split in words.splits}
    history = _fit(config, _new_student(config, student_config, vectors, splits[TRAIN]), splits, run)
    student = Tagger.load(folder).to(default_device())
    result = {
        "history": history,
        "best": best_of(history),
        "used_rows": student.config.used_rows,
        "evaluation": {split: evaluate_split(student, rows) for split, rows in splits.items() if split != TRAIN},
        "versions": {name: version(name) for name in LIBRARIES},
    }
    write_text(folder / CARD_FILE, card_text(student, run.record() | {"result": result}))
    return run.finish(result)


class TokenLabelTask(BatchedTask):
    """A student and the sentences that it is trained and scored on.

    Args:
        config: the settings.
        student: is trained in place.
        splits: ``train``, and dev splits.
        optimizer: takes the gradients of the rows of tables that a batch uses. (default: whole tables have gradients)
        write: writes the student to a folder.

    Raises:
        DataError: if no training sentence has a token, or none has gold and nothing else is learnt from.
    """

    def __init__(
        self,
        config: TrainConfig,
        student: Tagger,
        splits: dict[str, LabelledWords],
        optimizer: TrainOptimizer | None = None,
        write: Callable[[Path], None] | None = None,
    ) -> None:
        self.model, self._config, self._optimizer, self._write = student, config, optimizer, write or student.save
        train = splits[TRAIN]
        self._ids = train.pieces.ids.not_empty  # a batch of sentences without tokens would have no mean
        if not len(self._ids):
            raise DataError("no sentence of the train split has a token, nothing to train on")
        self._dev = {split: rows for split, rows in splits.items() if split != TRAIN}
        self.batches = make_batches(
            student.config.head, self._ids.lengths, config.per_device_train_batch_size, config.seed
        )
        gold_T = torch.from_numpy(train.gold_T)
        known_T = (gold_T != NO_LABEL).float()
        if config.alpha == 1 and not known_T.any():
            raise DataError("no word of the train split has gold, and --alpha 1 learns from gold alone")
        weight_T = known_T if config.alpha == 1 else torch.ones_like(known_T)
        self._stored = torch.from_numpy(train.teacher_TC), gold_T, weight_T

    def loss(self, rows: list[int]) -> torch.Tensor:
        """The mean loss of a batch's tokens, a scalar.

        Those without gold, of which every word has some that is read in pieces, learn from the teacher alone, and with
        ``--alpha 1`` not at all.
        """
        device = self.model.device
        places, taken = tokens_of(self._ids, rows)
        ids_T, starts_S = (to_device(torch.from_numpy(part), device) for part in (taken.flat, taken.offsets))
        teacher_TC, gold_T, weight_T = (to_device(part[places], device) for part in self._stored)
        used = rows_of_batch(self._optimizer, self.model.encoder, ids_T, starts_S)
        logits_TC = self.model(ids_T, starts_S, used)
        soft = (self._config.temperature, self._config.soft_loss)
        return task_loss(self.model.config.target, logits_TC, teacher_TC, gold_T, self._config.alpha, *soft, weight_T)

    def evaluate(self) -> Metrics:
        """The task's metrics on each dev split."""
        metrics = self.model.config.metrics
        logits = {split: logits_of_tokens(self.model, rows.pieces.ids) for split, rows in self._dev.items()}
        return {split: word_scores(metrics, rows.tallies(logits[split])) for split, rows in self._dev.items()}

    def save(self, folder: Path) -> None:
        """Writes the student."""
        self._write(folder)


def _fit(config: TrainConfig, student: Tagger, splits: dict[str, LabelledWords], run: Run) -> list[Entry]:
    """Trains the rows of the tables that the data use, and saves the whole student."""
    active = active_ids(splits.values(), student.config.pad_id)
    small = prune(student, active).to(default_device())
    rates = (config.optimizer, config.peak_learning_rate, config.max_grad_norm)
    optimizer = make_optimizer(*rates, small.encoder, small.head)
    note_slow_kernels(small.device)

    def write(folder: Path) -> None:
        restore(student, small, active)
        student.config = with_used_rows(student.config, student.encoder)
        student.save(folder)

    renumbered = {split: _renumber(rows, active) for split, rows in splits.items()}
    task = TokenLabelTask(config, small, renumbered, optimizer, write)
    return fit(run, task, optimizer, epochs(config, task.batches.steps_per_epoch), config.report_to)


def _renumber(rows: LabelledWords, active: Any) -> LabelledWords:
    return replace(rows, pieces=Pieces(renumbered(rows.pieces.ids, active), rows.pieces.word_ids))


def _new_student(
    config: TrainConfig, student_config: TokenLabelConfig, vectors: VocabularyVectors | None, train: LabelledWords
) -> Tagger:
    seed_step(config.seed, 0)
    student = Tagger(student_config)
    if config.init_from is None:
        neutralise_untrained(student, train)
    else:
        copy_embeddings(config.init_from, student.encoder)
    if vectors is not None:
        start_from_teacher(student.encoder, vectors)
    return student


def _settings(
    config: TrainConfig, student_config: TokenLabelConfig, words: TokenLabelSet, vectors: VocabularyVectors | None
) -> dict[str, Any]:
    """What decides the weights; where the set and the run lie does not."""
    wanted = {
        *("seed", "alpha", "soft_loss", "temperature", "num_train_epochs", "early_stopping_patience"),
        *("warmup_steps", "per_device_train_batch_size", "max_grad_norm", "optimizer"),
    }
    return config.model_dump(mode="json", include=wanted) | {
        "student": student_config.model_dump(mode="json"),
        "learning_rate": config.peak_learning_rate,
        "init_from_sha256": source_sha256(config.init_from, student_config),
        "token_vectors_sha256": vectors.sha256 if vectors else None,
        "logit_set_fingerprints": [words.record.fingerprint],
        "rows_sha256": words.record.splits[TRAIN].rows_sha256,
    }

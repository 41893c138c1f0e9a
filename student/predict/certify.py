"""``distill certify``: from rows that a student was not trained on, how sure it must be to speak for its teacher."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import console
from pipeline.arrays import Bools
from pipeline.errors import ConfigError, DistillError, FingerprintMismatchError, QueryError
from pipeline.file_names import RUN_RECORD
from pipeline.query.selection import read_chosen
from pipeline.record_file import Record, read_work_record
from pipeline.sets.kinds.examples import KEYS, ORIGINALS, ExampleSet, keys_sha256
from pipeline.sql.read_only_query import check_condition
from pipeline.tasks.target import Target, margins, softmax
from pipeline.tasks.task import TRAIN
from pipeline.tasks.temperature import calibrated
from pipeline.text.same_input import input_keys
from student.data import as_read, load_examples
from student.evaluate import open_evaluated
from student.lessons.examples import ExampleLesson, check_readable, student_logits
from student.model.student import Student, default_device
from student.predict.certificate import (
    CERTIFICATE_FILE,
    Certificate,
    certify_margins,
    model_hashes,
    read_certificate,
    write_certificate,
)
from student.predict.labels import ABSTAIN
from student.run_settings import CertifySettings
from student.vocabulary import as_run_reads

COLUMNS = (*KEYS, "text_hash", "sentence1", "sentence2")


def certify(config: CertifySettings) -> Certificate:
    """Finds the smallest margin above which a student agrees with its teacher, and writes the proof into its folder.

    Without such a margin nothing is written, and an earlier proof stays. The rows are originals of the training split
    that were not used for training. Rows with the same text as a training row, or with a variant among the training
    rows, are left out.

    Raises:
        ConfigError: if the student has scores, or was trained on all of the rows, or has a stricter certificate.
        FingerprintMismatchError: if the training rows cannot be determined today, or the student cannot read the set.
    """
    record = read_work_record(config.run / RUN_RECORD)
    student = Student.load(config.run).to(default_device())
    _check_target(student.config.target)
    _keep_stricter(config)
    logit_set = open_evaluated(ExampleLesson(), record, config.set, config.store, config.allow_unverified)
    check_readable(student.config, logit_set)
    logit_set = as_run_reads(logit_set, config.run, student.config)
    rows = read_originals(logit_set, COLUMNS, config.where)
    examples = as_read(load_examples(logit_set, TRAIN, _of_originals(config.where)), student.config)
    # Rows that the student was trained on agree too often, so the bound would not hold for new text.
    access = config.store, config.allow_unverified
    is_new_N = not_trained_on(config.run, record, logit_set, rows, config.where, *access)
    logits_NC, teacher_NC = student_logits(student, examples)[is_new_N], examples.teacher_NC[is_new_N]
    # Agreement with the teacher needs no gold, so any held-out row can serve.
    differs_N = logits_NC.argmax(axis=1) != teacher_NC.argmax(axis=1)
    # Margins are of calibrated probabilities, as `predict` compares them with the threshold.
    margin_N = margins(softmax(calibrated(logits_NC, student.config.calibration)))
    certified, trials = certify_margins(margin_N, differs_N, config.disagreement, config.confidence)
    certificate = Certificate(
        disagreement=config.disagreement,
        confidence=config.confidence,
        certified=certified,
        trials=trials,
        num_rows=len(differs_N),
        logit_set=str(logit_set.root.resolve()),
        logit_set_fingerprint=logit_set.record.fingerprint,
        where=config.where,
        rows_sha256=keys_sha256(rows.filter(pa.array(is_new_N))),
        logits_sha256=hashlib.sha256(teacher_NC.tobytes()).hexdigest(),
        student_sha256=model_hashes(config.run),
    )
    # A failed attempt must not replace an earlier certificate of the same weights.
    if certified is not None:
        write_certificate(config.run, certificate)
    return certificate


def read_originals(logit_set: ExampleSet, columns: tuple[str, ...], where: str) -> pa.Table:
    """Columns of the training rows that are no variants and fulfil a user's condition.

    Raises:
        QueryError: if the condition is wrong.
    """
    with _errors_of_condition_alone(where):
        return logit_set.read(TRAIN, columns, _of_originals(where))


def _of_originals(where: str) -> str:
    # The line break ends a comment in the user's condition, which would swallow the closing bracket.
    return f"{ORIGINALS} and ({where}\n)"


@contextmanager
def _errors_of_condition_alone(where: str) -> Iterator[None]:
    """Reports errors of the user's condition without the query that this program puts around it."""
    check_condition(where)
    try:
        yield
    except QueryError as error:
        reason = str(error).partition("\n\nLINE ")[0]
        raise QueryError(f"--where {where!r}: {reason}") from error


def _keep_stricter(config: CertifySettings) -> None:
    """Raises ConfigError if the run has a stricter certificate of the same weights, which nobody meant to lose."""
    if config.replace or not (config.run / CERTIFICATE_FILE).exists():
        return
    try:
        there = read_certificate(config.run)
    except DistillError:
        # A damaged certificate, or one of other weights, protects nothing.
        return
    if config.disagreement > there.disagreement or config.confidence < there.confidence:
        raise ConfigError(
            f"{config.run / CERTIFICATE_FILE}: certifies at most {there.disagreement:.2%} disagreement with "
            f"{there.confidence:.0%} confidence. --disagreement {config.disagreement:g} and --confidence "
            f"{config.confidence:g} are weaker. Add --replace to replace it."
        )


def _check_target(target: Target) -> None:
    if not target.has_classes:
        raise ConfigError(
            f"certify: is for students that predict one label per row, but this task {target.type.why_no_classes}"
        )
    if ABSTAIN in target.names:
        raise ConfigError(f"certify: a label of this task is called {ABSTAIN!r} itself. Rename it.")


def not_trained_on(
    run: Path,
    record: Record,
    logit_set: ExampleSet,
    rows: pa.Table,
    where: str,
    store: Path,
    allow_unverified: bool,
) -> Bools:
    """Returns which rows are new to a run [N]: it was trained neither on their text nor on a variant of it.

    Args:
        run: its folder.
        record: its record.
        logit_set: the set of the rows.
        rows: N rows, with `COLUMNS`.
        where: the condition that chose them, for messages.
        store: where the sets of the run may be.
        allow_unverified: whether these may be complete but not verified.

    Raises:
        ConfigError: if none is new.
        FingerprintMismatchError: if the training rows cannot be determined today.
    """
    trained = _trained_rows(run, record, store, allow_unverified)
    settings = record["settings"]
    others = "another run (--init)" if settings["init_from_sha256"] and not settings.get("init_layers") else None
    others = f"the sets of {', '.join(settings['tasks'])}" if settings.get("tasks") else others
    if others is not None:
        console.warn(
            f"{run}: its encoder was trained on the rows of {others}, too. Rows among these "
            "make the certificate weaker, and this command cannot identify them"
        )
    # Keys also find copies of a training text that stand in other rows. A set without text has only its hashes.
    seen = pc.is_in(rows.column("text_hash"), trained.column("text_hash").combine_chunks())
    seen = pc.or_(seen, pc.is_in(input_keys(rows), input_keys(trained), skip_nulls=True))
    # Row numbers mean the same row only within the same set.
    if logit_set.record.fingerprint in record["settings"]["logit_set_fingerprints"]:
        same_row = pc.is_in(rows.column("source_row"), trained.column("source_row").combine_chunks())
        seen = pc.or_(seen, same_row)
    num_seen = pc.sum(seen).as_py()
    if num_seen == rows.num_rows:
        raise ConfigError(
            f"{run}: was trained on all {num_seen:,} rows with {where}, so they prove nothing. Keep some "
            f'out of its training, as with --where "not ({where})"'
        )
    if num_seen:
        console.warn(f"{num_seen:,} of {rows.num_rows:,} rows are left out: the student was trained on them")
    return ~np.asarray(seen)


def _trained_rows(run: Path, record: Record, store: Path, allow_unverified: bool) -> pa.Table:
    settings = record["settings"]
    own_sets = open_evaluated(ExampleLesson(), record, None, store, allow_unverified)
    trained = read_chosen(own_sets, settings["query"], COLUMNS)
    # If the query chooses other rows today, the rows of the training are unknown, and nothing can be proved.
    if keys_sha256(trained) != settings["rows_sha256"]:
        raise FingerprintMismatchError(
            f"{run}: its query selects other rows today than those it was trained on, so the rows that are new "
            "to it are unknown. See `distill verify RUN`."
        )
    return trained

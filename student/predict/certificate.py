"""The confidence above which a student agrees with its teacher, proved on held-out rows.

A threshold is accepted if at most a share ε of the answers above it differs from the teacher's, with confidence 1 - δ.
Thresholds are tried in a fixed order, from strict to lax, each by the exact binomial bound at the full level, up to the
first that fails ("fixed sequence testing"). The total chance that a wrong one is accepted is therefore at most δ.
Thresholds are margins of the rows themselves, but they do not depend on agreement, so the number of disagreements above
one is binomial. Shapes: N rows.
"""

import math
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from pipeline import console
from pipeline.arrays import Floats
from pipeline.errors import ConfigError, DistillError, IntegrityError
from pipeline.file_names import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from pipeline.files import remove_temporaries, sha256, write_text
from pipeline.parsing import parse_model
from pipeline.record_file import read_record, with_checksum
from pipeline.tasks.intervals import upper_bound

CERTIFICATE_FILE = "certificate.json"
PERCENT = range(1, 101)
# The first trial should pass with this chance, so that a good student is rarely refused by bad luck.
LIKELY = 0.9


class Trial(BaseModel):
    """One threshold: how many of the rows are above it, and how many of these differ from the teacher.

    Attributes:
        percent: share of the rows that it was chosen to answer.
        threshold: margins above it are answered.
        bound: on the share of predictions that differ, at the requested confidence.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    percent: int
    threshold: float = Field(ge=-1, le=1)
    answered: int = Field(ge=0)
    disagreements: int
    bound: float


class Certificate(BaseModel):
    """A bound on a student's disagreement with its teacher, and the rows that prove it.

    Attributes:
        certified: the laxest threshold that holds.
        trials: all of them, those beyond the first that fails, too.
        num_rows: held-out rows.
        rows_sha256: hash of their keys, in the set with this fingerprint.
        logits_sha256: hash of the teacher's logits of them.
        where: what chose them.
        student_sha256: hashes of the student's files that it holds for.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    disagreement: float = Field(gt=0, lt=1)
    confidence: float = Field(gt=0, lt=1)
    certified: Trial | None
    trials: tuple[Trial, ...]
    num_rows: int = Field(ge=0)
    logit_set: str
    logit_set_fingerprint: str
    where: str
    rows_sha256: str
    logits_sha256: str
    student_sha256: dict[str, str]

    @property
    def coverage(self) -> float:
        """Share of the rows that are answered."""
        return self.certified.answered / self.num_rows if self.certified else 0.0

    @property
    def first_trial(self) -> Trial:
        """The strictest threshold that counts: with too few rows that of all answers."""
        first = fewest_rows(self.num_rows, self.disagreement, self.confidence)
        return next((trial for trial in self.trials if trial.answered >= first), self.trials[-1])


class CertifiedMargin(BaseModel):
    """The part of a certificate that a file for the engine holds: the margin, and what it promises.

    Attributes:
        threshold: margins above it are answered. -1 answers all.
        disagreement: the greatest share of the answers that differ from the teacher's.
        confidence: with which that holds.
        answered: how many of the held-out rows are answered.
        num_rows: held-out rows.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    threshold: float = Field(ge=-1, le=1, allow_inf_nan=False)
    disagreement: float = Field(gt=0, lt=1)
    confidence: float = Field(gt=0, lt=1)
    answered: int = Field(ge=0)
    num_rows: int = Field(ge=0)


def certify_margins(
    margin_N: Floats, differs_N: np.ndarray, disagreement: float, confidence: float
) -> tuple[Trial | None, tuple[Trial, ...]]:
    """The laxest threshold that holds, or None, and everything that was tried.

    Args:
        margin_N: how sure the student is.
        differs_N: bool, whether its prediction differs from its teacher's.
        disagreement: ε, the greatest share of answers that may differ.
        confidence: 1 - δ, with which that must hold.
    """
    # Cumulative sums over falling margins give every threshold's disagreements in one pass.
    order_N = np.argsort(-margin_N, kind="stable")
    sorted_N, wrong_N = margin_N[order_N], np.concatenate([[0], np.cumsum(differs_N[order_N])])
    trials = []
    for percent in PERCENT:
        place = math.ceil(len(margin_N) * percent / 100)
        # No margin is negative, so -1 answers every row.
        threshold = float(sorted_N[place]) if place < len(margin_N) else -1.0
        # Rows of equal margin cannot be separated by a threshold, so all of them are answered or none.
        answered = int(np.searchsorted(-sorted_N, -threshold))
        wrong = int(wrong_N[answered])
        bound = upper_bound(wrong, answered, confidence)
        trials.append(Trial(percent=percent, threshold=threshold, answered=answered, disagreements=wrong, bound=bound))
    first = fewest_rows(len(margin_N), disagreement, confidence)
    certified = None
    for trial in trials:
        # Fixed-sequence testing stops at the first failure. Going on after it would need a correction of the level.
        if trial.answered >= first:
            if trial.bound > disagreement:
                break
            certified = trial
    return certified, tuple(trials)


def fewest_rows(num_rows: int, disagreement: float, confidence: float) -> int:
    """Returns the number of answers at which the trials begin, which is fixed before any answer is compared.

    The number is large enough that a quarter of the allowed disagreement would very likely pass, so that bad luck with
    the first rows does not end the trials. It is at most a fifth of the rows, and at least the number that could pass
    without disagreements.
    """
    from scipy.special import bdtr

    # With fewer rows even zero disagreements prove nothing: 299 are needed for 1 % at 95 %.
    least = math.ceil(math.log(1 - confidence) / math.log(1 - disagreement))
    count = least
    while count < num_rows // 5:
        passing = _most_wrong(count, disagreement, confidence)
        if bdtr(passing, count, disagreement / 4) >= LIKELY:
            break
        # Steps of 5 % are fine enough, and the search stays short for millions of rows.
        count += max(1, count // 20)
    return max(least, min(count, num_rows // 5))


def _most_wrong(count: int, disagreement: float, confidence: float) -> int:
    """Returns the largest number of disagreements among ``count`` answers with which the bound holds, or -1."""
    wrong = -1
    while upper_bound(wrong + 1, count, confidence) <= disagreement:
        wrong += 1
    return wrong


def model_hashes(run: Path) -> dict[str, str]:
    """Returns the hashes of everything that determines a student's answers.

    Its config contains that of its tokenizer.
    """
    return {name: sha256(run / name) for name in (CONFIG_FILE, WEIGHTS_FILE)}


def file_hashes(folder: Path) -> dict[str, str]:
    """Returns the hashes of all files of a student that are there: its config, its weights and its tokenizer."""
    paths = [folder / name for name in (CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE)]
    return {path.name: sha256(path) for path in paths if path.is_file()}


def write_certificate(run: Path, certificate: Certificate) -> None:
    """Puts a certificate into a run's folder, in place of an older one."""
    remove_temporaries(run)
    write_text(run / CERTIFICATE_FILE, with_checksum(certificate.model_dump_json(indent=2)))


def read_certificate(run: Path) -> Certificate:
    """The certificate of a run.

    Raises:
        ConfigError: if it has no certificate, or one for other weights.
        IntegrityError: if it is damaged.
    """
    path = run / CERTIFICATE_FILE
    try:
        certificate = parse_model(Certificate, read_record(path), str(path))
    except FileNotFoundError as error:
        raise ConfigError(f"{run}: has no certificate. Make one with `distill certify {run}`.") from error
    except ConfigError as error:
        raise IntegrityError(f"{path}: not a certificate: {error}") from error
    # Retraining in the same folder would otherwise leave a proof about other weights.
    if certificate.student_sha256 != model_hashes(run):
        raise ConfigError(f"{path}: is of other weights than those beside it. Repeat `distill certify {run}`.")
    return certificate


def certified_margin(run: Path) -> CertifiedMargin:
    """The margin above which a run's student answers.

    Raises:
        ConfigError: if the run has no certificate of its weights, or nothing was proved.
        IntegrityError: if the certificate is damaged.
    """
    certificate = read_certificate(run)
    best = certificate.certified
    if best is None:
        raise ConfigError(f"{run}: no threshold could be certified at {certificate.disagreement:g} disagreement")
    return CertifiedMargin(
        threshold=best.threshold,
        disagreement=certificate.disagreement,
        confidence=certificate.confidence,
        answered=best.answered,
        num_rows=certificate.num_rows,
    )


def margin_for_file(run: Path, is_unrounded: bool) -> CertifiedMargin | None:
    """The margin that goes into a file of a run's student, or None without a certificate for the numbers in the file.

    Args:
        run: the folder of the run.
        is_unrounded: whether the file has the numbers of the run.
    """
    path = run / CERTIFICATE_FILE
    if not path.exists():
        return None
    if not is_unrounded:
        console.warn(f"{path}: is about weights that are not rounded, so the file has no certificate")
        return None
    try:
        return certified_margin(run)
    except DistillError as error:
        console.warn(f"the file has no certificate: {error}")
        return None

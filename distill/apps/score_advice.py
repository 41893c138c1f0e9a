"""Advice about scores for `finetune-teacher`, `train-student`, `evaluate` and `quickstart`."""

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DistillError, IntegrityError
from pipeline.file_names import RUN_RECORD
from pipeline.record_file import Record, read_work_record
from pipeline.sets.kinds import open_set
from pipeline.sets.kinds.examples import ORIGINALS, ExampleSet, text_hashes
from pipeline.sets.kinds.token_labels import TokenLabelSet
from pipeline.tasks.spans import scores_by_span, word_scores
from pipeline.tasks.task import OUTSIDE, TRAIN
from pipeline.text.same_input import input_keys
from pipeline.training.best_epoch import may_select
from pipeline.training.run_record import Entry
from student.run_settings import EvaluateSettings
from student.trained_sets import trained_sets

SKEWED = 0.6  # above this share of one label, accuracy hides the errors on the others
MOST_NAMED = 10  # labels in a sentence
TEACHER_ADVICE = "Train it longer (--num-train-epochs), or choose a larger encoder."
STUDENT_ADVICE = (
    "It may be the better choice. A fine-tuned teacher and unlabelled text (teacher-dump --unlabelled) help students "
    "most."
)
WORDS_ADVICE = "It may be the better choice. A teacher of a larger encoder and more sentences help students most."
ARE_COPIES = "have the text of a training row, so scores are too high"
CORRELATIONS = ("pearson", "spearmanr")
SURE = 0.5  # this far from guessing to perfect, gold is reversed rather than hard to predict
LONGER = "Train it on more rows, or for more epochs (--num-train-epochs)."
# The settings of students that may be compared.
SHAPE = ("seed", "embedding", "matrix_size", "vector_size", "head", "hidden_size", "pairing", "learning_rate")
Scores = Mapping[str, float]


def judge(parts: Mapping[str, Any], is_file: bool = False) -> list[str]:
    """Judges the scores of one split.

    Args:
        parts: the results of `student.evaluate.evaluate` for a split, with or without the scores of a ``baseline``.
        is_file: whether the split is a file that may not suit the student.
    """
    return [*_left_out(parts), *_teacher(parts), *_student(parts, is_file), *_skew(parts)]


def judge_teacher(best: Entry) -> list[str]:
    """Judges the best epoch of a fine-tuning by its recorded scores on the first dev split."""
    scores: Scores = next(iter(best["metrics"].values()), {})
    if not {"labels_in_gold", "labels_predicted"} <= scores.keys():
        return []
    missing = int(scores["labels_in_gold"] - scores["labels_predicted"])
    if missing <= 0:
        return []
    counts = f"{missing} of the {int(scores['labels_in_gold'])} labels"
    return [f"The teacher never predicts at least {counts}. {TEACHER_ADVICE}"]


def judge_rows(run: Path, record: Record) -> list[str]:
    """Compares a finished run with its sibling runs on fewer rows of the same task, without variants or added text.

    The scores are those of a test split, if there is one, because the others selected the epoch. A difference within
    the run's own 95 % interval may be chance.

    Args:
        run: the folder of the run.
        record: its record.
    """
    own = _comparable(record)
    if own is None:
        return []
    same, rows, name, score, high = own
    found = []
    for path in sorted(run.resolve().parent.glob(f"*/{RUN_RECORD}")):
        try:
            other = read_work_record(path)
        except IntegrityError:
            continue
        theirs = _comparable(other) if other["state"] == "finished" else None
        if theirs is not None and theirs[0] == same and theirs[1] < rows and theirs[3] > high:
            found.append((theirs[3], theirs[1], path.parent.name))
    if not found:
        return []
    best, fewer, where = max(found)
    both = f"{score:.3f} from {rows:,} training rows, {best:.3f} from the {fewer:,} rows of {where}"
    advice = "If only the rows differ, leave out variants or unlabelled text (--where), or check them."
    return [f"The {name} is lower than with fewer rows, and not by chance: {both}. {advice}"]


def judge_texts(settings: EvaluateSettings, rows: pa.Table) -> list[str]:
    """Counts the rows of a file that copy an input that the run was trained on. Empty texts are no evidence.

    Args:
        settings: names the run and its store.
        rows: of the file, with the columns of a `Source`'s splits.
    """
    try:
        record = read_work_record(settings.run / RUN_RECORD)
        logit_set = open_set(trained_sets(record, settings.store)[0], settings.allow_unverified)
    except DistillError:
        # A run is evaluated on a file also where its set is gone.
        return []
    if TRAIN not in logit_set.splits:
        return []
    if isinstance(logit_set, TokenLabelSet):
        keys, trained = input_keys(rows), _word_keys(logit_set, TRAIN)
    elif isinstance(logit_set, ExampleSet):
        keys, trained = _text_keys(rows, logit_set)
    else:
        return []
    count = _num_copies(keys, trained)
    return [f"{count:,} of {rows.num_rows:,} rows {ARE_COPIES}."] if count else []


def judge_words(logit_set: TokenLabelSet) -> list[str]:
    """Counts by dev split the sentences of a set that copy a training row, and judges the teacher."""
    keys = {name: _word_keys(logit_set, name) for name in logit_set.splits}
    trained = keys.pop(TRAIN, pa.nulls(0, pa.string()))
    counts = {name: _num_copies(own, trained) for name, own in keys.items()}
    found = [f"{name}: {count:,} of {len(keys[name]):,} rows {ARE_COPIES}." for name, count in counts.items() if count]
    return found + [f"{name}: {line}" for name in keys for line in judge(_parts_of_words(logit_set, name))]


def _parts_of_words(logit_set: TokenLabelSet, split: str) -> dict[str, Any]:
    rows, metrics = logit_set.read(split), logit_set.record.metrics
    outside_TC = np.zeros_like(rows.teacher_TC)
    outside_TC[:, rows.names.index(OUTSIDE)] = 1
    tallies, majority = rows.tallies(rows.teacher_TC), word_scores(metrics, rows.tallies(outside_TC))
    teacher = {"teacher": word_scores(metrics, tallies), "teacher_by_label": scores_by_span(rows.names, tallies)}
    return {"gold": {}, "majority": majority} | teacher


def _num_copies(keys: pa.Array, trained: pa.Array) -> int:
    return pc.sum(pc.is_in(keys, trained, skip_nulls=True)).as_py() or 0


def _word_keys(logit_set: TokenLabelSet, split: str) -> pa.Array:
    """Returns the keys of the sentences of a split, which are equal for copies."""
    shards = (part for shard in logit_set.shards(split) for part in logit_set.read_shard(shard))
    return input_keys(pa.concat_tables(part.select(["words"]) for part in shards).rename_columns(["sentence1"]))


def _left_out(parts: Mapping[str, Any]) -> Iterator[str]:
    """Counts the rows without a score, where others have one."""
    counts = {name.replace("_", " "): count for name, count in parts.get("rows", {}).items() if count}
    scored = counts.pop("scored", 0)
    if scored and counts:
        why = " and ".join(f"{count:,} {'is' if count == 1 else 'are'} {name}" for name, count in counts.items())
        yield f"Only {scored:,} of {scored + sum(counts.values()):,} rows were scored: {why}."


def _text_keys(rows: pa.Table, logit_set: ExampleSet) -> tuple[pa.Array, pa.Array]:
    """Returns the keys of rows and of a set's training rows, which are equal for copies."""
    keys = input_keys(rows)
    if logit_set.record.has_text:
        return keys, input_keys(logit_set.read(TRAIN, ("sentence1", "sentence2"), ORIGINALS))
    # A set that was pushed without text has only hashes, which find rows with exactly the same text.
    trained = logit_set.read(TRAIN, ("text_hash",), ORIGINALS).column("text_hash").combine_chunks()
    hashes = pa.array(text_hashes(rows, logit_set.record.tokenizer.sha256), trained.type)
    return pc.if_else(keys.is_null(), None, hashes), trained


def _teacher(parts: Mapping[str, Any]) -> Iterator[str]:
    teacher: Scores = parts["teacher"]
    if not teacher:
        return
    by_label, found = parts.get("teacher_by_label", {}), list[str]()
    silent = _silent(by_label)
    predicted = [scores["predicted"] for scores in by_label.values() if scores["predicted"]]
    # One class for all rows, whichever it is. Spans of one label may be as many as those of gold.
    is_constant = predicted == [sum(scores["gold"] for scores in by_label.values())] and "span_f1" not in teacher
    if is_constant or teacher == parts["majority"]:
        found.append("The teacher gives every row the same answer.")
    elif silent:
        found.append(f"The teacher never predicts {_named(silent)}.")
    found += _below_baseline("teacher", teacher, "teacher_by_label", parts)
    # Several problems of a teacher have the same remedy, which is named once.
    yield from found[:-1]
    yield from (f"{line} {TEACHER_ADVICE}" for line in found[-1:])


def _student(parts: Mapping[str, Any], is_file: bool) -> Iterator[str]:
    student, teacher = parts["gold"], parts["teacher"]
    # Other gold than the student learned explains all of its scores, so no other advice is given.
    if reversed_gold := _reversed(parts):
        yield reversed_gold
        return
    # A teacher without the label cannot teach it, and the advice about the teacher is the one that helps.
    silent = [name for name in _silent(parts.get("by_label", {})) if not _silent(parts.get("teacher_by_label", {}))]
    if silent:
        yield f"The student never predicts {_named(silent)}. `train-student --class-weights balanced` may help."
    advice = WORDS_ADVICE if "span_f1" in student else STUDENT_ADVICE
    # A bag weighs all labels the same, which is fair beside the thresholds that `predict` uses.
    decided = parts.get("decided") or student
    yield from (f"{line} {advice}" for line in _below_baseline("student", decided, "by_label", parts))
    first = next(iter(student), None)
    if first is None:
        return
    guessing = parts["majority"][first]
    if student[first] <= guessing:
        both = f"{first} ({student[first]:.3f} against {guessing:.3f})"
        advice = LONGER
        if is_file and not teacher:
            advice = "Compare with its scores on its own dev rows: `distill evaluate RUN` without --data."
        elif teacher and teacher[first] <= guessing:
            advice = "Its teacher is not better, so improve the teacher first."
        yield f"The student is not better than guessing by {both}. {advice}"
    if student[first] > teacher.get(first, 1.0):
        yield f"The student's {first} is above its teacher's. Improve the teacher before you add text."


def _reversed(parts: Mapping[str, Any]) -> str | None:
    """Returns a warning if gold is nearly always another label than predicted by one rule, or scores run against it."""
    name, correlation = next(((one, parts["gold"][one]) for one in CORRELATIONS if one in parts["gold"]), ("", 0.0))
    if correlation <= -SURE:
        return f"Gold falls where the student's score rises ({name} {correlation:.3f}). Check the direction of gold."
    if correlations := _label_correlations(parts):
        if fmean(correlations) > -SURE:
            return None
        what = "Labels mostly hold in gold where the student does not predict them"
        return f"{what}, so gold is reversed or has its labels in another order. Check the column of gold."
    counts = {gold: row for gold, row in parts.get("confusion", {}).items() if row}
    most = {gold: max(row, key=row.__getitem__) for gold, row in counts.items()}
    others = {gold: name for gold, name in most.items() if gold != name}
    # Each label is mostly predicted for one gold label, as for gold with its labels in another order.
    if not others or most.keys() != set(most.values()):
        return None
    sizes = [sum(row.values()) for row in counts.values()]
    agreeing = sum(counts[gold][name] for gold, name in most.items())
    if agreeing - max(sizes) < SURE * (sum(sizes) - max(sizes)):
        return None
    pairs = ", ".join(f"{name!r} where gold is {gold!r}" for gold, name in others.items())
    return f"The student mostly predicts {pairs}, so gold has its labels in another order. Check the column of gold."


def _label_correlations(parts: Mapping[str, Any]) -> list[float]:
    """Returns the correlation of gold and prediction of each label that varies, of a multi-label task."""
    # Other tasks with labels count rows by gold and prediction.
    by_label = parts["by_label"] if parts.get("confusion") == {} else {}
    num_rows, found = parts.get("rows", {}).get("scored", 0), []
    for one in by_label.values():
        gold, predicted, right = one["gold"], one["predicted"], one["precision"] * one["predicted"]
        if spread := gold * (num_rows - gold) * predicted * (num_rows - predicted):
            found.append((num_rows * right - gold * predicted) / sqrt(spread))
    return found


def _skew(parts: Mapping[str, Any]) -> Iterator[str]:
    if found := _skewed_label(parts):
        name, share = found
        yield f"{share:.0%} of the rows have the label {name!r}: judge by macro_f1, not by accuracy."


def _skewed_label(parts: Mapping[str, Any]) -> tuple[str, float] | None:
    """Returns the label that most rows have and its share, if accuracy hides the errors on the others."""
    counts = {name: sum(row.values()) for name, row in parts.get("confusion", {}).items()}
    if not counts or "accuracy" not in parts["gold"] or "span_f1" in parts["gold"]:
        return None
    most = max(counts, key=counts.__getitem__)
    share = counts[most] / sum(counts.values())
    return (most, share) if share >= SKEWED else None


def _below_baseline(who: str, own: Scores, by_label: str, parts: Mapping[str, Any]) -> Iterator[str]:
    baseline: Scores = parts.get("baseline", {}).get("scores", {})
    if "macro_f1" in baseline and parts.get(by_label):
        own = {"macro_f1": fmean(one["f1"] for one in parts[by_label].values()), **own}
    below = [
        f"{metric} ({own[metric]:.3f} against {theirs:.3f})"
        for metric, theirs in baseline.items()
        if metric in own and own[metric] < theirs and not (metric == "accuracy" and _skewed_label(parts))
    ]
    if below:
        what = "linear model of five words" if "span_f1" in baseline else "bag of n-grams"
        yield f"A {what} is better than the {who} by {' and '.join(below)}."


def _silent(by_label: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The labels of gold that are never predicted."""
    return [name for name, scores in by_label.items() if scores["gold"] and not scores["predicted"]]


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more labels" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _comparable(record: Record) -> tuple[Any, int, str, float, float] | None:
    """Returns what two runs have in common if their rows explain a difference, the number of rows, and the score.

    The score is that of the first metric, after the metric's name and before the upper end of its interval.
    """
    evaluation = record.get("result", {}).get("evaluation") or {}
    split = min(evaluation, key=may_select, default="")
    parts: dict[str, Any] = evaluation.get(split, {"gold": {}})
    rows = record["settings"].get("rows")
    name, score = next(iter(parts["gold"].items()), ("", 0.0))
    if not name or rows is None:
        return None
    gold = {label: one["gold"] for label, one in parts.get("by_label", {}).items() if one["gold"]}
    high = parts["interval"].get(name, (score, score))[1]
    return (split, parts["majority"], gold, [record["settings"].get(key) for key in SHAPE]), rows, name, score, high

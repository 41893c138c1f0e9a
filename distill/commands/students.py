"""``distill pretrain-student``, ``filters``, ``train-student``, ``sweep``, and what judges and describes a student."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.apps.app_settings import ExperimentSettings, SweepFlags
from distill.commands.command import called, command, needs_libraries, needs_teacher_libraries
from distill.result import Result, Text
from pipeline import console
from pipeline.errors import ConfigError, DistillError
from pipeline.file_names import RUN_RECORD
from pipeline.record_file import Record, read_work_record
from pipeline.settings import build, flag_name, flags, given
from pipeline.training.run_record import STUDENTS, Entry
from student.pretrain_settings import FiltersSettings, PretrainSettings
from student.run_settings import DescribeSettings, EvaluateSettings, MaskedWordsSettings
from student.settings import TrainSettings
from student.summary import evaluation_tables, mistakes, point_table, size_line, tie

if TYPE_CHECKING:
    import pyarrow as pa

    from student.evaluate import Teacher

LABEL_COLUMNS = ("gold", "predicted", "precision", "recall", "f1")
MOST_LABELS = 20  # labels in the table
MOST_COLUMNS = 8  # of a matrix of labels, which has to fit a terminal


@command(PretrainSettings)
def pretrain_student(settings: PretrainSettings) -> Result:
    """Pretrain a student on stored predictions of masked words or on sentence vectors."""
    from student.pretrain import pretrain

    record = pretrain(settings, called())
    if not record:
        return Result()
    return _add_history(Result(record), record["result"]["history"], record["logit_set"])


@command(FiltersSettings)
def filters(settings: FiltersSettings) -> Result:
    """Learn task-specific filters of a teacher's stored layers for train-student --filters (TED)."""
    from student.losses.ted_filters import train_filters

    record = train_filters(settings, called())
    layers = ", ".join(map(str, record["settings"]["layers"]))
    title = f"filters of layers {layers}, by the head of the last one"
    return _add_history(Result(record), record["result"]["history"], title)


def _add_history(result: Result, history: list[Entry], title: str) -> Result:
    """Adds the loss of each entry of a history, and the metrics of the first dev split."""
    unit = next(iter(history[-1]))
    split, metrics = next(iter(history[-1]["metrics"].items()), ("", {}))
    rows = [[entry[unit], entry["loss"], *entry["metrics"].get(split, {}).values()] for entry in history]
    columns = [unit, "loss", *(f"{split} {name.replace('_', ' ')}" for name in metrics)]
    return result.table(columns, rows, title)


@command(TrainSettings)
def train_student(settings: TrainSettings) -> Result:
    """Train a student from a logit set."""
    from distill.apps.score_advice import judge, judge_rows
    from student.train import train

    record = train(settings, called())
    result = record["result"]
    best = f"best of {len(result['history'])} epochs is epoch {result['best']['epoch']}"
    judgements = {split: judge(parts) for split, parts in result["evaluation"].items()}
    if judgements and STUDENTS not in record:
        folder = settings.output_dir or Path("runs") / "+".join(Path(one).name for one in record["logit_sets"])
        next(iter(judgements.values())).extend(judge_rows(folder, record))
    shown = Result(record | {"judgements": judgements})
    _add_evaluation(shown, f"{', '.join(record['logit_sets'])}: {best}", result["evaluation"])
    _add_size(shown, record)
    return _add_judgements(shown, {split: {"judgements": lines} for split, lines in judgements.items()})


@command(SweepFlags)
def sweep(settings: SweepFlags) -> Result:
    """Train a student for every combination of values and seeds, or run an experiment, and compare the students."""
    if settings.experiments is not None:
        values, known = given(settings), flags(ExperimentSettings)
        reason = "does not go with --experiment. Remove one of them"
        foreign = [f"{flag_name(name)}: {reason}" for name in values if name not in known]
        return _experiment(build(ExperimentSettings, {name: values[name] for name in values.keys() & known}, foreign))
    from student.sweep.sweep import sweep as run_sweep

    found = run_sweep(settings, called())["result"]
    result = Result(found).table(*point_table(found), found["metric"])
    if found["best"]:
        result.pairs("best run", {found["best"]["run"]: found["best"]["score"]})
        tied = tie(found["points"])
        if tied is not None:
            result.note(f"No setting is clearly the best: {tied}. Choose by size or speed, or add --seeds.")
    if "best_by_task" in found:
        result.pairs("best of each task", {one["run"]: one["score"] for one in found["best_by_task"].values()})
    return result


def _experiment(settings: ExperimentSettings) -> Result:
    """Runs an experiment, or prints its commands."""
    from distill.apps.experiments.comparison import planned, run_experiment

    if settings.plan:
        lines = planned(settings)
        return Result(lines).add(Text("".join(f"{line}\n" for line in lines)))
    needs_teacher_libraries()
    found = run_experiment(settings, called())
    failed = [
        task
        for task, values in found["tasks"].items()
        if "failed" in values or any("failed" in cell for cell in values["systems"].values())
    ]
    result = Result(found).failed(bool(failed))
    result.add(Text((settings.output_dir / "RESULTS.md").read_text(encoding="utf-8")))
    if failed:
        result.warn(f"some results are missing: {', '.join(failed)}. Repeat the command to retry them")
    return result


@command(EvaluateSettings)
def evaluate(settings: EvaluateSettings) -> Result:
    """Score a run against gold labels or masked tokens, and against its teacher."""
    from student.model.config_file import is_pretrained

    if is_pretrained(settings.run):
        from student.evaluate import evaluate_pretrained

        scores = evaluate_pretrained(settings)
        rows = [[split, name, value] for split, values in scores.items() for name, value in values.items()]
        return Result(scores).table(["", "metric", "student"], rows, str(settings.run))
    if settings.baseline:
        needs_libraries("distill evaluate --baseline", "results", "sklearn")
    if settings.data is not None:
        from student.evaluate import evaluate_file

        return _evaluated(settings, *evaluate_file(settings, _teacher(settings.teacher)))
    from student.evaluate import evaluate as evaluate_run

    return _evaluated(settings, evaluate_run(settings), None)


def _teacher(folder: Path | None) -> "Teacher | None":
    if folder is None:
        return None
    needs_teacher_libraries()
    from distill.apps.teacher_advice import answers

    return partial(answers, folder)


def _evaluated(settings: EvaluateSettings, evaluation: dict[str, Any], rows: "pa.Table | None") -> Result:
    from distill.apps.score_advice import judge, judge_texts

    if settings.baseline:
        from distill.apps.baseline import add_baseline

        add_baseline(settings, evaluation, rows)
    for parts in evaluation.values():
        parts["judgements"] = judge(parts, rows is not None) + ([] if rows is None else judge_texts(settings, rows))
    result = _add_evaluation(Result(evaluation), str(settings.run), evaluation, with_labels=True)
    return _add_judgements(_add_size(result, read_work_record(settings.run / RUN_RECORD)), evaluation)


def _add_size(result: Result, record: Record) -> Result:
    line = size_line(record)
    return result if line is None else result.note(line)


def _add_evaluation(result: Result, title: str, evaluation: dict[str, Any], with_labels: bool = False) -> Result:
    """Adds the scores of each split, and those of its labels if there are many, or with a matrix if wanted."""
    if not evaluation:
        return result.note(f"{title}. There is no dev split for scores")
    for columns, rows in evaluation_tables(evaluation).values():
        result.table(columns, rows, title if "metric" in columns else "")
    for split, parts in evaluation.items():
        by_label = parts.get("by_label", {})
        if len(by_label) > 2 or parts.get("decided") or (with_labels and by_label):
            add_labels(result, split, by_label)
        if with_labels and parts.get("confusion"):
            _add_confusion(result, split, parts["confusion"])
    return result


def _add_judgements(result: Result, evaluation: dict[str, Any]) -> Result:
    """Adds what to do about the scores of each split."""
    for split, parts in evaluation.items():
        for line in parts["judgements"]:
            result.warn(f"{split}: {line}")
    return result


def _add_confusion(result: Result, split: str, counts: dict[str, dict[str, int]]) -> None:
    """Adds how often each gold label got each prediction. With many labels, adds the most frequent mistakes."""
    labels = list(dict.fromkeys([*counts, *(name for row in counts.values() for name in row)]))
    if len(labels) <= MOST_COLUMNS:
        rows = [[name, *(counts.get(name, {}).get(other, 0) for other in labels)] for name in labels]
        result.table(["gold \\ predicted", *labels], rows, f"{split}: rows by gold label and prediction")
        return
    worst = [one[:3] for one in mistakes(counts)[:MOST_LABELS]]
    if worst:
        result.table(["gold", "predicted", "rows"], worst, f"{split}: the most frequent confusions. --json has all")


def add_labels(result: Result, split: str, by_label: dict[str, dict[str, float]]) -> None:
    """Adds the scores of each label. With many labels, adds only the worst ones."""
    # The worst labels show what to improve. --json still contains all of them.
    worst = sorted(by_label, key=lambda name: by_label[name]["f1"])[:MOST_LABELS]
    rows = [[name, *(by_label[name][key] for key in LABEL_COLUMNS)] for name in worst]
    is_cut = len(by_label) > len(worst)
    part = f"the {MOST_LABELS} worst of {len(by_label)} labels. --json prints all of them" if is_cut else "by label"
    result.table(["label", *LABEL_COLUMNS], rows, f"{split}: {part}")


@command(DescribeSettings)
def describe(settings: DescribeSettings) -> Result:
    """Describe a set by its card, or a student by its architecture, parameters, bytes, multiply-adds and speed."""
    from pipeline.sets.open import find_set, is_set

    if is_set(settings.set_or_run, settings.store):
        from pipeline.sets.card import card_text
        from pipeline.sets.record import read_set_record

        text = card_text(read_set_record(find_set(settings.set_or_run, settings.store)))
        return Result({"card": text}).add(Text(text))
    from student.describe import describe as describe_student

    made = describe_student(settings.set_or_run)
    rows = [(name, value) for name, value in made["architecture"].items()]
    rows += [(f"parameters: {name}", value) for name, value in made["parameters"].items()]
    rows += [("bytes", f"{made['bytes']:,} ({console.size(made['bytes'])})")]
    rows += [(f"multiply-adds {name.replace('_', ' ')}", value) for name, value in made["multiply_adds"].items()]
    speed = _texts_per_second(Path(settings.set_or_run))
    if speed is not None:
        made["texts_per_second"] = speed
        rows += [("texts a second on this machine", f"{speed:,.0f}")]
    return Result(made).pairs(settings.set_or_run, dict(rows))


def _texts_per_second(run: Path) -> float | None:
    """Returns how many inputs the student of a folder answers in a second. None for a recipe."""
    from distill.apps.timing import texts_per_second
    from student.predict.predictor import Predictor

    if not run.is_dir():
        return None
    try:
        predictor = Predictor(run)
    except DistillError:  # an architecture can be described without its weights or its tokenizer
        return None
    return texts_per_second(predictor)


@command(MaskedWordsSettings)
def masked_words(settings: MaskedWordsSettings) -> Result:
    """Compare which words matter to students and to their teacher, by rows with each word masked."""
    if settings.output is not None:
        needs_libraries("distill masked-words --output", "report", "matplotlib")
        if settings.output.is_dir():
            raise ConfigError(f"--output {settings.output}: is a folder. Give the name of a file.")
    from student.word_importance import RESULT_COLUMNS, result_rows
    from student.word_importance import masked_words as compare

    compared = compare(settings)
    rows, words = len(compared.rows), sum(len(row.words) for row in compared.rows)
    result = Result({"set": compared.set_name, "rows": rows, "words": words, "runs": compared.results})
    if settings.output is not None:
        from distill.apps.report.comparison_pages import masked_words_page
        from distill.apps.report.page import write_page

        write_page(settings.output, masked_words_page(compared))
        result.note(f"{settings.output}: written")
    return result.table(RESULT_COLUMNS, result_rows(compared), f"{compared.set_name}: {compared.amount}")

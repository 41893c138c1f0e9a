"""``distill predict``, ``certify`` and ``export``: a student at work."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from distill.commands.command import command
from distill.result import Result
from pipeline import console
from pipeline.errors import ConfigError, raise_all
from student.cascade.cascade_settings import CascadeSettings
from student.run_settings import CertifySettings, ExportSettings, PredictSettings

if TYPE_CHECKING:
    from student.predict.multi_task import AnyPredictor

# A certificate that rests on fewer answers gets a warning.
FEW_ANSWERS = 100
# Each prediction shows so many labels, because more columns do not fit a terminal.
BEST_LABELS = 3
BAR = 10  # characters to either side
MOST_TABLES = 3  # tables of an explained prediction, one per label


@command(PredictSettings)
def predict(settings: PredictSettings) -> Result:
    """Predict labels or scores for sentences, for a file, or for rows as they arrive."""
    from student.predict.labels import read_costs
    from student.predict.multi_task import MultiTaskPredictor, cascade_of, open_predictor

    predictor = open_predictor(settings.run, settings.task_names, settings.abstain, read_costs(settings.cost))
    if isinstance(predictor, MultiTaskPredictor):
        given = {"--explain": settings.explain, "--collect": settings.collect is not None}
        folders = " or ".join(str(settings.run / task) for task in predictor.predictors)
        problems = [f"{flag}: is for one task. Give {folders}" for flag, is_given in given.items() if is_given]
        raise_all(ConfigError, str(settings.run), problems)
    elif settings.collect is not None:
        if (cascade := cascade_of(predictor)) is None:
            raise ConfigError(
                f"--collect {settings.collect}: only a cascade hands inputs on. See `distill cascade --help`"
            )
        cascade.collect(settings.collect, not settings.collect_without_text)
    if settings.reads_stdin:
        from student.predict.file import predict_lines

        predict_lines(settings, predictor, sys.stdin.buffer)
        return Result()
    if settings.output is not None:
        from student.predict.file import predict_file

        values = predict_file(settings, predictor)
        done = "written" if values["written"] else "were there already"
        result = Result(values).note(f"{values['output']}: {values['rows']:,} answers {done}")
        if "handed_on" in values:
            counts = values["handed_on"]
            result.note(
                f"{counts['inputs']:,} inputs were handed on to the last stage: {counts['answered']:,} answered, "
                f"{counts['not_answered']:,} not answered"
            )
        return result
    sentences1, sentences2 = _inputs(settings, predictor)
    columns = {"sentence": sentences1} if sentences2 is None else {"sentence 1": sentences1, "sentence 2": sentences2}
    if isinstance(predictor, MultiTaskPredictor):
        return _by_task(columns, predictor(sentences1, sentences2))
    if settings.explain:
        return _explained(sentences1, sentences2, predictor.explain(sentences1, sentences2))
    predictions = predictor(sentences1, sentences2)
    if predictor.info.labels_words:
        return _labelled(predictions)
    answers = list(map(_cells, predictions))
    rows = [[*texts, *answer.values()] for *texts, answer in zip(*columns.values(), answers, strict=True)]
    return Result(predictions).data([*columns, *next(iter(answers), {})], rows)


def _by_task(columns: dict[str, list[str]], predictions: list[dict[str, dict[str, Any]]]) -> Result:
    """A row for each input and task."""
    rows = []
    for *texts, answers in zip(*columns.values(), predictions, strict=True):
        rows += [[*texts, task, *_short(answer)] for task, answer in answers.items()]
    return Result(predictions).data([*columns, "task", "answer", "likeliest"], rows)


def _short(prediction: dict[str, Any]) -> tuple[Any, str]:
    """Returns the answer, and the most likely labels with their probabilities."""
    if "words" in prediction:
        return " ".join(word["label"] for word in prediction["words"]), ""
    if "score" in prediction:
        return prediction["score"], ""
    return _label(prediction), _likeliest(prediction["probabilities"])


def _label(prediction: dict[str, Any]) -> str:
    label = prediction["label"]
    return ", ".join(label) or "(none)" if isinstance(label, list) else str(label)


def _likeliest(probabilities: dict[str, float]) -> str:
    best = sorted(probabilities, key=probabilities.__getitem__, reverse=True)[:BEST_LABELS]
    return ", ".join(f"{name} {probabilities[name]:.2f}" for name in best)


def _labelled(answers: list[dict[str, Any]]) -> Result:
    """The words of each sentence with their labels, and the spans."""
    words = [[k, w["text"], w["label"], w["probability"]] for k, answer in enumerate(answers) for w in answer["words"]]
    spans = [
        [k, s["text"], s["label"], s["start"], s["end"]] for k, answer in enumerate(answers) for s in answer["spans"]
    ]
    result = Result(answers).data(["sentence", "word", "label", "probability"], words)
    return result.data(["sentence", "span", "label", "start", "end"], spans)


def _inputs(settings: PredictSettings, predictor: "AnyPredictor") -> tuple[list[str], list[str] | None]:
    if settings.file is not None:
        from student.predict.file import read_texts

        return read_texts(settings, predictor)
    from student.texts import BLANK, has_text

    width = 1 + predictor.is_pair
    for start in range(0, len(settings.texts), width):
        if not has_text(settings.texts[start : start + width]):
            raise ConfigError(f"texts: input {start // width + 1} contains {BLANK}. Give a text.")
    if not predictor.is_pair:
        return list(settings.texts), None
    if len(settings.texts) % 2:
        count = len(settings.texts)
        raise ConfigError(f"texts: {settings.run} compares pairs, so it needs an even number of texts, not {count}.")
    return list(settings.texts[0::2]), list(settings.texts[1::2])


def _cells(prediction: dict[str, Any]) -> dict[str, Any]:
    """Returns a prediction by columns: a column per probability, or one column with the best of many labels."""
    if "score" in prediction:
        return prediction
    probabilities: dict[str, float] = prediction["probabilities"]
    shown = probabilities if len(probabilities) <= BEST_LABELS else {"likeliest": _likeliest(probabilities)}
    return {"label": _label(prediction), **shown} | {key: prediction[key] for key in ("stage",) if key in prediction}


def _explained(sentences1: Sequence[str], sentences2: Sequence[str] | None, explained: list[dict[str, Any]]) -> Result:
    """What `Predictor.explain` returns, and for each input a table of its words, with bars for or against the answer.

    All bars of a table have the same scale. The longest bar belongs to the word with the largest effect.
    """
    result = Result(explained)
    for number, prediction in enumerate(explained):
        texts = [sentences1[number], *([] if sentences2 is None else [sentences2[number]])]
        for name, value in _predicted(prediction):
            title = f"{name} {console.show(value)}: {' | '.join(texts)}"
            _add_words(result, title, name, prediction["words"], is_pair=sentences2 is not None)
    return result


def _predicted(prediction: dict[str, Any]) -> list[tuple[str, float]]:
    """Returns what the words explain: the score, the predicted labels, or the most likely label."""
    if "score" in prediction:
        return [("score", prediction["score"])]
    probabilities: dict[str, float] = prediction["probabilities"]
    label = prediction["label"]
    predicted = [name for name in (label if isinstance(label, list) else [label]) if name in probabilities]
    # An abstention or an empty set of labels is explained by its most likely label.
    ranked = sorted(predicted or probabilities, key=probabilities.__getitem__, reverse=True)
    return [(name, probabilities[name]) for name in ranked[: MOST_TABLES if predicted else 1]]


def _add_words(result: Result, title: str, name: str, words: list[dict[str, Any]], is_pair: bool) -> None:
    largest = max((abs(word["effect"][name]) for word in words), default=0.0)
    rows = [
        [
            *([word["sentence"]] if is_pair else []),
            word["word"],
            f"{word['effect'][name]:+.4f}",
            bar(word["effect"][name], largest),
            *([f"{word['entropy']:+.4f}"] if "entropy" in word else []),
        ]
        for word in words
    ]
    entropy = ["entropy without"] if words and "entropy" in words[0] else []
    heads = [*(["sentence"] if is_pair else []), "word", "effect", f"{'against':>{BAR}}│for", *entropy]
    result.table(heads, rows, title)


def bar(value: float, largest: float) -> str:
    """Returns a bar to the right for a positive value, to the left for a negative one, scaled by the largest."""
    # Without any effect there is no scale, and dividing by 0 would end the command after its work is done.
    length = round(BAR * abs(value) / largest) if largest else 0
    left, right = ("", "█" * length) if value > 0 else ("█" * length, "")
    return f"{left:>{BAR}}│{right:<{BAR}}"


@command(CertifySettings)
def certify(settings: CertifySettings) -> Result:
    """Find the margin above which a student agrees with its teacher. Exit code 1 if there is none."""
    from student.predict.certificate import CERTIFICATE_FILE
    from student.predict.certify import certify as certify_run

    certificate = certify_run(settings)
    best, coverage = certificate.certified, certificate.coverage
    result = Result(certificate.model_dump() | {"coverage": coverage}).failed(best is None)
    if best is None:
        first = certificate.first_trial
        result.warn(
            f"no threshold holds: of its {first.answered:,} surest answers to {certificate.num_rows:,} rows "
            f"{first.disagreements:,} differ from the teacher. These are too many to prove that at most "
            f"{settings.disagreement:.2%} differ. Use more rows, or a larger --disagreement."
        )
        if (settings.run / CERTIFICATE_FILE).exists():
            result.note(f"{settings.run / CERTIFICATE_FILE}: the earlier certificate stays")
        return result
    at_most = f"at most {settings.disagreement:.2%} differ from the teacher, with {settings.confidence:.0%} confidence"
    pairs = {
        "answers where the margin is above": best.threshold,
        "of which": at_most,
        "answered": f"{best.answered:,} of {certificate.num_rows:,} held-out rows ({coverage:.1%})",
        "differ among them": f"{best.disagreements:,} (with that confidence below {best.bound:.2%})",
    }
    result.pairs(str(settings.run), pairs)
    if best.answered < FEW_ANSWERS:
        result.warn(f"it rests on only {best.answered:,} answers. Use more rows for a stronger certificate.")
    return result


@command(CascadeSettings)
def cascade(settings: CascadeSettings) -> Result:
    """Let a cheap student answer what it is sure of, and a larger student or a server the rest."""
    from student.cascade.create import create_cascade

    record = create_cascade(settings)
    # The source of a server may contain a secret, its name does not.
    named = [stage.model_copy(update={"source": name}) for name, stage in zip(record.names, record.stages, strict=True)]
    stages = [[stage.source, stage.threshold, stage.cost] for stage in named]
    result = Result(record.model_copy(update={"stages": tuple(named)}).model_dump()).table(
        ["stage", "answers above a margin of", "cost"], stages
    )
    for split, found in record.measured.items():
        rows = [[one.stage, one.share, one.cost, one.agreement, one.accuracy] for one in found.stages]
        rows.append(["cascade", 1.0, found.cascade.cost, found.cascade.agreement, found.cascade.accuracy])
        columns = ["alone", "share of the rows that it answers", "cost", "agreement with the last", "accuracy"]
        result.table(columns, rows, f"{split}: {found.rows:,} rows; the cost of the last stage is 1")
    return result.note(f"{settings.output_dir}: predict, serve, SQL and Python take it like a run")


@command(ExportSettings)
def export(settings: ExportSettings) -> Result:
    """Write a student for the engine, as ONNX or HTML, or with smaller tables, and measure its accuracy."""
    from student.export.export import export as export_student

    exported = export_student(settings)
    before, after = exported["bytes"]["before"], exported["bytes"]["after"]
    rows: list[list[Any]] = [
        ["bytes of the weights" if settings.html is None and settings.file is None else "bytes", before, after, None]
    ]
    for split, scores in exported["scores"].items():
        for name, value in scores.items():
            ends = value["after_interval"]
            interval = "{:.3f} to {:.3f}".format(*ends) if ends else None
            rows.append([f"{split} {name} of {value['rows']:,} rows", value["before"], value["after"], interval])
    made = str(settings.html or settings.file or f"{settings.tables or 'the same'} tables")
    columns = ["", str(settings.run), made, *(["its 95 % interval"] if exported["scores"] else [])]
    result = Result(exported).table(columns, [row[: len(columns)] for row in rows])
    if settings.onnx is not None:
        onnx = exported["onnx"]
        result.pairs(str(settings.onnx), {"bytes": onnx["bytes"], "largest difference from torch": onnx["difference"]})
    return result

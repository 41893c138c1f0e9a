"""``distill train-student`` and what is done with a student: from ``evaluate`` to ``certify`` and ``predict``."""

import sys
from typing import TYPE_CHECKING, Any

import typer

from distill.commands.history import print_history
from distill.commands.options import command_line, takes
from distill.commands.words import print_explanations
from pipeline import console
from pipeline.errors import ConfigError, short
from student.config import (
    CertifyConfig,
    DescribeConfig,
    EvaluateConfig,
    ExportConfig,
    PredictConfig,
    PretrainConfig,
    ReproduceConfig,
    SweepConfig,
    TrainConfig,
)
from student.summary import SCORE_COLUMNS, point_table, score_rows

if TYPE_CHECKING:
    from student.predict import Predictor

FEW_ANSWERS = 100  # a certificate of fewer is warned of
LABEL_COLUMNS = ("gold", "said", "precision", "recall", "f1")
MOST_LABELS = 20  # shown one by one
BEST_LABELS = 3  # shown of each prediction; more columns do not fit a terminal


@takes(TrainConfig)
def train_student(config: TrainConfig) -> None:
    """Train a student from a logit set."""
    from student.recipe import with_recipe
    from student.train.train import train

    record = train(with_recipe(config), command_line())
    if config.json_output:
        console.print_json(record)
        return
    result = record["result"]
    best = f"best of {len(result['history'])} epochs is epoch {result['best']['epoch']}"
    _print_evaluation(f"{', '.join(record['logit_sets'])}: {best}", result["evaluation"])


@takes(PretrainConfig)
def pretrain_student(config: PretrainConfig) -> None:
    """Pretrain a student on stored predictions of masked words or on vectors of sentences, for train-student."""
    from student.pretrain import pretrain

    record = pretrain(config, command_line())
    if not record:
        return
    if config.json_output:
        console.print_json(record)
        return
    print_history(record["result"]["history"], record["logit_set"])


@takes(SweepConfig)
def sweep(config: SweepConfig) -> None:
    """Train a student for every combination of values and seed, and compare them."""
    from student.sweep.run import sweep as run_sweep

    result = run_sweep(config, command_line())["result"]
    if config.json_output:
        console.print_json(result)
        return
    console.print_table(*point_table(result), title=result["metric"])
    if result["best"]:
        console.print_pairs("best run", {result["best"]["run"]: result["best"]["score"]})
    if "best_by_task" in result:
        console.print_pairs("best of each task", {one["run"]: one["score"] for one in result["best_by_task"].values()})


@takes(EvaluateConfig)
def evaluate(config: EvaluateConfig) -> None:
    """Score a run against gold labels, or masked tokens, and against its teacher."""
    from student.evaluate import evaluate_pretrained
    from student.model.config_file import is_pretrained

    if is_pretrained(config.run):
        _print_scores(str(config.run), evaluate_pretrained(config), config.json_output)
        return
    from student.evaluate import evaluate as evaluate_run

    result = evaluate_run(config)
    if config.json_output:
        console.print_json(result)
        return
    _print_evaluation(str(config.run), result)


def _print_scores(title: str, scores: dict[str, dict[str, float]], json_output: bool) -> None:
    if json_output:
        console.print_json(scores)
        return
    rows = [[split, name, value] for split, values in scores.items() for name, value in values.items()]
    console.print_table(["", "metric", "student"], rows, title=title)


def _print_evaluation(title: str, evaluation: dict[str, Any]) -> None:
    if not evaluation:
        console.note(f"{title}; there is no dev split to score it on")
        return
    others: list[list[Any]] = []
    for split, parts in evaluation.items():
        others += [[split, name.replace("_", " "), value] for name, value in parts.get("labels", {}).items()]
        decided = "as it decides"
        others += [[split, f"{name.replace('_', ' ')} {decided}", v] for name, v in parts.get("decided", {}).items()]
        others += [[split, name, value] for name, value in parts["bins"].items()]
        others += [[split, f"{name} with the teacher", value] for name, value in parts["fidelity"].items()]
    console.print_table(SCORE_COLUMNS, score_rows(evaluation), title=title)
    console.print_table(["split", "also", "student"], others)
    for split, parts in evaluation.items():
        by_label = parts.get("by_label", {})
        if len(by_label) > 2 or parts.get("decided"):
            _print_labels(split, by_label)


def _print_labels(split: str, by_label: dict[str, dict[str, float]]) -> None:
    """Scores label by label: of many the worst, which are what one looks for."""
    worst = sorted(by_label, key=lambda name: by_label[name]["f1"])[:MOST_LABELS]
    rows = [[name, *(by_label[name][key] for key in LABEL_COLUMNS)] for name in worst]
    part = (
        f"the {MOST_LABELS} worst of {len(by_label)} labels; --json has all"
        if len(by_label) > len(worst)
        else "by label"
    )
    console.print_table(["label", *LABEL_COLUMNS], rows, title=f"{split}: {part}")


@takes(DescribeConfig)
def describe(config: DescribeConfig) -> None:
    """Tell what a student is made of: architecture, parameters, bytes, multiply-adds."""
    from student.describe import describe as describe_student

    result = describe_student(config.run_or_recipe)
    if config.json_output:
        console.print_json(result)
        return
    rows = [(name, value) for name, value in result["architecture"].items()]
    rows += [(f"parameters: {name}", value) for name, value in result["parameters"].items()]
    rows += [("bytes", f"{result['bytes']:,} ({console.size(result['bytes'])})")]
    rows += [(f"multiply-adds {name.replace('_', ' ')}", value) for name, value in result["multiply_adds"].items()]
    console.print_pairs(config.run_or_recipe, dict(rows))


@takes(ExportConfig)
def export(config: ExportConfig) -> None:
    """Write a student as an ONNX or an HTML file, or with smaller tables, and measure what that costs."""
    from student.export.run import export as export_student

    result = export_student(config)
    if config.json_output:
        console.print_json(result)
        return
    before, after = result["bytes"]["before"], result["bytes"]["after"]
    rows: list[list[Any]] = [["bytes of the weights" if config.html is None else "bytes", before, after]]
    for split, scores in result["scores"].items():
        rows += [[f"{split} {name}", value["before"], value["after"]] for name, value in scores.items()]
    console.print_table(["", str(config.run), str(config.html or f"{config.tables or 'the same'} tables")], rows)
    if config.onnx is not None:
        onnx = result["onnx"]
        pairs = {"bytes": onnx["bytes"], "largest difference from torch": onnx["difference"]}
        console.print_pairs(str(config.onnx), pairs)


@takes(ReproduceConfig)
def reproduce(config: ReproduceConfig) -> None:
    """Run a run's recorded query again: exit code 0 if it chooses the same rows and logits today, 1 if not."""
    from student.reproduce import reproduce as reproduce_run

    compared = reproduce_run(config)
    changed = [name for name, values in compared.items() if values["then"] != values["now"]]
    if config.json_output:
        console.print_json({"same": not changed, "compared": compared})
    else:
        rows = [[name, short(v["then"]), short(v["now"]), v["then"] == v["now"]] for name, v in compared.items()]
        console.print_table(["", "then", "now", "same"], rows, title=str(config.run))
    if changed:
        console.warn(f"not the same today: {len(changed)} of {len(compared)}: {', '.join(changed)}")
        raise typer.Exit(1)


@takes(CertifyConfig)
def certify(config: CertifyConfig) -> None:
    """Find how sure a student must be so that its answers are its teacher's: exit code 1 if it never is."""
    from student.answers.certificate import CERTIFICATE_FILE
    from student.answers.certify import certify as certify_run

    certificate = certify_run(config)
    best = certificate.certified
    if config.json_output:
        console.print_json(certificate.model_dump() | {"coverage": certificate.coverage})
    elif best is not None:
        at_most = f"at most {config.disagreement:.2%} differ from the teacher, with {config.confidence:.0%} confidence"
        pairs = {
            "answers where the margin is above": best.threshold,
            "of which": at_most,
            "answered": f"{best.answered:,} of {certificate.num_rows:,} held-out rows ({certificate.coverage:.1%})",
            "differ among them": f"{best.disagreements:,} (with that confidence below {best.bound:.2%})",
        }
        console.print_pairs(str(config.run), pairs)
    if best is not None and best.answered < FEW_ANSWERS:
        console.warn(f"it rests on {best.answered:,} answers: take more rows for one that says more")
    if best is None:
        first = certificate.first_trial
        console.warn(
            f"no threshold holds: of its {first.answered:,} surest answers to {certificate.num_rows:,} rows "
            f"{first.disagreements:,} differ from the teacher, too many to show that at most "
            f"{config.disagreement:.2%} of any do; take more rows, or more --disagreement"
        )
        if (config.run / CERTIFICATE_FILE).exists():
            console.note(f"{config.run / CERTIFICATE_FILE}: the earlier certificate stays")
        raise typer.Exit(1)


@takes(PredictConfig)
def predict(config: PredictConfig) -> None:
    """Predict labels or scores of sentences, of a file, or of rows as they arrive."""
    from student.answers.costs import read_costs
    from student.model.config_file import labels_words
    from student.predict import Predictor

    if labels_words(config.run):
        _predict_words(config)
        return
    predictor = Predictor(config.run, config.abstain, read_costs(config.cost))
    if config.reads_stdin:
        from student.answers.stream import predict_lines

        predict_lines(config, predictor, sys.stdin.buffer)
    elif config.output is not None:
        from student.answers.file import predict_file

        _print_written(predict_file(config, predictor), config.json_output)
    elif config.explain:
        sentences1, sentences2 = _inputs(config, predictor)
        print_explanations(sentences1, sentences2, predictor.explain(sentences1, sentences2), config.json_output)
    else:
        sentences1, sentences2 = _inputs(config, predictor)
        _print_predictions(sentences1, sentences2, predictor(sentences1, sentences2), config.json_output)


def _predict_words(config: PredictConfig) -> None:
    from student.words.file import check_flags, predict_file, read_sentences
    from student.words.predict import WordPredictor

    check_flags(config)
    predictor = WordPredictor(config.run)
    if config.output is not None:
        _print_written(predict_file(config, predictor), config.json_output)
        return
    answers = predictor(list(config.texts) if config.file is None else read_sentences(config))
    if config.json_output:
        console.print_json(answers)
        return
    words = [[k, w["text"], w["label"], w["probability"]] for k, answer in enumerate(answers) for w in answer["words"]]
    spans = [
        [k, s["text"], s["label"], s["start"], s["end"]] for k, answer in enumerate(answers) for s in answer["spans"]
    ]
    console.print_rows(["sentence", "word", "label", "probability"], words)
    console.print_rows(["sentence", "span", "label", "start", "end"], spans)


def _inputs(config: PredictConfig, predictor: "Predictor") -> tuple[list[str], list[str] | None]:
    if config.file is not None:
        from student.answers.file import read_texts

        return read_texts(config, predictor)
    if not predictor.student.config.is_pair:
        return list(config.texts), None
    if len(config.texts) % 2:
        raise ConfigError(f"this student takes pairs, but {len(config.texts)} sentences are an odd number")
    return list(config.texts[0::2]), list(config.texts[1::2])


def _print_written(result: dict[str, Any], json_output: bool) -> None:
    done = "written" if result["written"] else "were there already"
    console.note(f"{result['output']}: {result['rows']:,} answers {done}")
    if json_output:
        console.print_json(result)


def _print_predictions(
    sentences1: list[str], sentences2: list[str] | None, predictions: list[dict[str, Any]], json_output: bool
) -> None:
    if json_output:
        console.print_json(predictions)
        return
    columns = {"sentence": sentences1} if sentences2 is None else {"sentence 1": sentences1, "sentence 2": sentences2}
    answers = list(map(_shown, predictions))
    rows = [[*texts, *answer.values()] for *texts, answer in zip(*columns.values(), answers, strict=True)]
    console.print_rows([*columns, *next(iter(answers), {})], rows)


def _shown(prediction: dict[str, Any]) -> dict[str, Any]:
    """A prediction by columns: its probabilities a column each, or of many labels the best ones in one."""
    if "score" in prediction:
        return prediction
    probabilities: dict[str, float] = prediction["probabilities"]
    label = prediction["label"]
    if isinstance(label, list):
        label = ", ".join(label) or "(none)"
    if len(probabilities) <= BEST_LABELS:
        return {"label": label, **probabilities}
    best = sorted(probabilities, key=probabilities.__getitem__, reverse=True)[:BEST_LABELS]
    return {"label": label, "likeliest": ", ".join(f"{name} {probabilities[name]:.2f}" for name in best)}

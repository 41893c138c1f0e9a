"""``distill train-student``, ``distill evaluate`` and ``distill predict``."""

from typing import Any

from pipeline import console
from pipeline.cli.options import command_line, takes
from pipeline.errors import ConfigError
from student.config import EvaluateConfig, PredictConfig, TrainConfig


@takes(TrainConfig)
def train_student(config: TrainConfig) -> None:
    """Train a student from a logit set."""
    from student.train import train

    record = train(config, command_line())
    if config.json_output:
        console.print_json(record)
        return
    best, history = record["result"]["best"], record["result"]["history"]
    rows = [[split, name, value] for split, metrics in best["metrics"].items() for name, value in metrics.items()]
    title = f"{config.logits or config.task}: best of {len(history)} epochs is epoch {best['epoch']}"
    console.print_table(["split", "metric", "student"], rows, title=title)


@takes(EvaluateConfig)
def evaluate(config: EvaluateConfig) -> None:
    """Score a run against gold labels and against its teacher."""
    from student.evaluate import evaluate as evaluate_run

    result = evaluate_run(config)
    if config.json_output:
        console.print_json(result)
        return
    rows: list[list[Any]] = []
    for split, parts in result.items():
        for name, value in parts["gold"].items():
            rows.append([split, name, value, parts["teacher"].get(name), parts["majority"].get(name)])
        rows += [[split, f"{name} with teacher", value, None, None] for name, value in parts["fidelity"].items()]
    console.print_table(["split", "metric", "student", "teacher", "majority"], rows, title=str(config.run))


@takes(PredictConfig)
def predict(config: PredictConfig) -> None:
    """Predict labels or scores of sentences, pairs, or a file."""
    from student.predict import Predictor

    predictor = Predictor(config.run)
    sentences1, sentences2 = _inputs(config, predictor.student.config.is_pair)
    results = predictor(sentences1, sentences2)
    if config.json_output:
        console.print_json(results)
        return
    texts = [[text] for text in sentences1] if sentences2 is None else list(zip(sentences1, sentences2, strict=True))
    heads = ["sentence"] if sentences2 is None else ["sentence 1", "sentence 2"]
    if results and "label" in results[0]:
        names = list(results[0]["probabilities"])
        rows = [[*t, r["label"], *r["probabilities"].values()] for t, r in zip(texts, results, strict=True)]
        console.print_table([*heads, "label", *names], rows)
    else:
        console.print_table([*heads, "score"], [[*t, r["score"]] for t, r in zip(texts, results, strict=True)])


def _inputs(config: PredictConfig, is_pair: bool) -> tuple[list[str], list[str] | None]:
    if bool(config.texts) == (config.file is not None):
        raise ConfigError("nothing to predict, or too much: give sentences or --file, one of them")
    if config.file is not None:
        from pipeline.sources import read_texts

        return read_texts(config.file, is_pair)
    if not is_pair:
        return list(config.texts), None
    if len(config.texts) % 2:
        raise ConfigError(f"this student takes pairs, but {len(config.texts)} sentences are an odd number")
    return list(config.texts[0::2]), list(config.texts[1::2])

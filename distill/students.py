"""What the commands do, as functions with their flags as keywords; their results show themselves as tables."""

from distill.commands.keywords import call_text, takes_keywords
from pipeline.shown import Result
from student.config import EvaluateConfig, TrainConfig
from student.evaluate import evaluate
from student.recipe import with_recipe
from student.summary import SCORE_COLUMNS, score_rows
from student.train.train import train


@takes_keywords(TrainConfig)
def train_student(config: TrainConfig) -> Result:
    """Trains a student, or goes on with it, as ``distill train-student`` does; returns what ``run.json`` holds."""
    record = train(with_recipe(config), call_text("train_student", config))
    result = record["result"]
    title = f"best of {len(result['history'])} epochs is epoch {result['best']['epoch']}"
    return Result(record, SCORE_COLUMNS, score_rows(result["evaluation"]), title)


@takes_keywords(EvaluateConfig)
def evaluate_student(config: EvaluateConfig) -> Result:
    """Scores a run on the dev splits of its set, as ``distill evaluate`` does; returns all scores by split."""
    evaluation = evaluate(config)
    return Result(evaluation, SCORE_COLUMNS, score_rows(evaluation), str(config.run))

"""model2vec's own classifier, which trains the vectors, too."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from model2vec import StaticModel
from model2vec.train import StaticModelForClassification

from distill.apps.results.baselines.regression import LEAST
from distill.apps.results.rows import Rows
from distill.apps.results.system import System
from pipeline.arrays import Floats
from pipeline.tasks.target import Target


def fit(train: Rows, target: Target, folder: Path) -> System:
    """Trains the vectors in a folder and a classifier on them, with model2vec's own defaults."""
    model = StaticModelForClassification.from_static_model(model=StaticModel.from_pretrained(folder))
    model.fit(train.texts1, train.label_N.tolist(), device="cpu")
    size = sum(parameter.numel() for parameter in model.parameters())
    classes = [int(name) for name in model.classes]
    pipeline = model.to_pipeline()

    def logits(texts1: Sequence[str], texts2: Sequence[str] | None) -> Floats:
        assert texts2 is None, "it is not fitted for pairs"
        logits_NC = np.full((len(texts1), target.num_logits), LEAST, dtype=np.float32)
        probability_NC = pipeline.predict_proba(list(texts1), use_multiprocessing=False)
        logits_NC[:, classes] = np.log(np.maximum(probability_NC, np.exp(LEAST)))
        return logits_NC

    return System(target, logits, size, 4 * size + len(pipeline.model.tokenizer.to_str().encode()))

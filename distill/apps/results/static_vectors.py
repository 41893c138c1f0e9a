"""model2vec baselines: vectors of the encoder that teachers are fine-tuned from, frozen or fine-tuned."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from model2vec import StaticModel
from model2vec.distill import distill
from model2vec.train import StaticModelForClassification

from distill.apps.linear import LEAST, fit_regression
from distill.apps.results.plan import content_sha256, weights_of
from distill.apps.systems import Rows, System
from pipeline.arrays import Floats
from pipeline.files import make_folder
from pipeline.tasks.target import Target


def distil(encoder: str, folder: Path) -> Path:
    """Writes model2vec's vectors of an encoder, with model2vec's defaults, unless they exist.

    Returns: Their folder, which belongs to this encoder.
    """
    own = folder / content_sha256([encoder, *weights_of(Path(encoder))])[:16]
    if own.exists():
        return own
    # A rename at the end: a kill while model2vec writes must not leave a folder that looks complete.
    unfinished = own.with_name(f"{own.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    make_folder(unfinished)
    distill(encoder, device="cpu").save_pretrained(unfinished)
    return unfinished.rename(own)


def fit_frozen(train: Rows, target: Target, folder: Path) -> System:
    """A regression on the vectors in a folder."""
    model = StaticModel.from_pretrained(folder)

    def vectors(texts: Any) -> Floats:
        return np.asarray(model.encode(list(texts), use_multiprocessing=False), dtype=np.float32)

    num_bytes = model.embedding.nbytes + len(model.tokenizer.to_str().encode())
    return fit_regression(train, target, vectors, num_bytes, model.embedding.size)


def fit_tuned(train: Rows, target: Target, folder: Path) -> System:
    """Trains the vectors in a folder and a classifier on them, with model2vec's own defaults."""
    model = StaticModelForClassification.from_static_model(model=StaticModel.from_pretrained(folder))
    model.fit(train.texts1, train.label_N.tolist(), device="cpu")
    size = sum(parameter.numel() for parameter in model.parameters())
    classes = [int(name) for name in model.classes]
    pipeline = model.to_pipeline()

    def logits(texts1: Sequence[str], texts2: Sequence[str] | None) -> Floats:
        assert texts2 is None, "model2vec's classifier does not support pairs"
        logits_NC = np.full((len(texts1), target.num_logits), LEAST, dtype=np.float32)
        probability_NC = pipeline.predict_proba(list(texts1), use_multiprocessing=False)
        # model2vec omits labels without a training row and may predict a probability of 0, whose logarithm is infinite.
        logits_NC[:, classes] = np.log(np.maximum(probability_NC, np.exp(LEAST)))
        return logits_NC

    return System(target, logits, size, 4 * size + len(pipeline.model.tokenizer.to_str().encode()))

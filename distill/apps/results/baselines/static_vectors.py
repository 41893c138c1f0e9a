"""model2vec from the encoder that teachers are fine-tuned from, its vectors frozen."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from model2vec import StaticModel
from model2vec.distill import distill

from distill.apps.results.baselines.regression import fit_regression
from distill.apps.results.commands import content_sha256
from distill.apps.results.plan import weights_of
from distill.apps.results.rows import Rows
from distill.apps.results.system import System
from pipeline.arrays import Floats
from pipeline.files import make_folder
from pipeline.tasks.target import Target


def distil(encoder: str, folder: Path) -> Path:
    """Writes model2vec's vectors of an encoder, with its own defaults, unless they are there.

    Returns:
        Where they are: in a folder of this encoder's own.
    """
    own = folder / content_sha256([encoder, *weights_of(Path(encoder))])[:16]
    if own.exists():
        return own
    unfinished = own.with_name(f"{own.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    make_folder(unfinished)
    distill(encoder, device="cpu").save_pretrained(unfinished)
    return unfinished.rename(own)


def fit(train: Rows, target: Target, folder: Path) -> System:
    """A regression on the vectors in a folder."""
    model = StaticModel.from_pretrained(folder)

    def vectors(texts: Any) -> Floats:
        return np.asarray(model.encode(list(texts), use_multiprocessing=False), dtype=np.float32)

    num_bytes = model.embedding.nbytes + len(model.tokenizer.to_str().encode())
    return fit_regression(train, target, vectors, num_bytes, model.embedding.size)

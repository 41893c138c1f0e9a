"""A student that is served: its name, its answers, and what it says of itself."""

from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import numpy as np

from distill.apps.serve.answers import Ranking, Scale, rankings
from distill.apps.serve.batches import Batches
from distill.apps.serve.config import ServeConfig
from distill.apps.serve.metrics import Metrics
from distill.apps.serve.stored import stored_answers
from distill.apps.serve.worker import Worker
from pipeline.arrays import Ints
from student.predict import BATCH_SIZE, Predictor


class Served:
    """A student with those who wait for it.

    Args:
        run: folder of its run.
        metrics: what is counted.
    """

    def __init__(self, run: Path, metrics: Metrics) -> None:
        self.name = name_of(run)
        self.predictor = Predictor(run)
        self.config = self.predictor.student.config
        self.stored = stored_answers(run, self.config.target)
        batches = partial(Batches, worker=Worker(self.predictor.is_quick), metrics=metrics)
        self.rankings = {scale: batches(partial(self._rankings, scale)) for scale in get_args(Scale)}
        self.vectors = batches(lambda texts, _: self.predictor.encode(texts))
        self.lengths = batches(self._lengths)

    def _rankings(self, scale: Scale, first: list[str], second: list[str] | None) -> list[Ranking]:
        return rankings(self.config.target, self.predictor.logits(first, second), scale)

    def _lengths(self, first: list[str], second: list[str] | None) -> Ints:
        """Tokens of each input, special ones included, before it is cut."""
        reader = self.predictor.reader
        parts = reader.read(first, second, None)
        special = reader.tokenizer.num_special_tokens_to_add(second is not None)
        return np.asarray(special + np.sum([part.lengths for part in parts], axis=0))

    def info(self, config: ServeConfig) -> dict[str, Any]:
        """What text-embeddings-inference tells of a model."""
        is_classifier = self.config.target.has_labels
        names = self.config.target.names if is_classifier else ("score",)
        labels = {
            "id2label": {str(k): name for k, name in enumerate(names)},
            "label2id": {name: k for k, name in enumerate(names)},
        }
        return {
            "model_id": self.name,
            "model_sha": None,
            "model_dtype": self.config.table_dtype,
            "model_type": {"classifier" if is_classifier else "reranker": labels},
            "max_concurrent_requests": config.max_concurrent_requests,
            "max_input_length": self.config.max_seq_length,
            "max_batch_tokens": BATCH_SIZE * self.config.max_seq_length,
            "max_batch_requests": None,
            "max_client_batch_size": config.max_client_batch_size,
            "auto_truncate": True,
            "tokenization_workers": 1,
            "version": version("distill-offline"),
            "sha": None,
            "docker_label": None,
        }

    def summary(self, config: ServeConfig) -> dict[str, Any]:
        """What the page needs to know of it."""
        target = self.config.target
        return {
            "name": self.name,
            "task": self.config.task,
            "is_pair": self.config.is_pair,
            "labels": list(target.names) if target.has_labels else [],
            "has_teacher": self.stored is not None,
            "max_client_batch_size": config.max_client_batch_size,
        }


def name_of(run: Path) -> str:
    """The name under which a run is served: the last part of its path as it was given, which may be a link."""
    return run.resolve().name if run.name in {"", ".."} else run.name

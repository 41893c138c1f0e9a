"""From text to labels, by a trained student and its tokenizer alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline.errors import ConfigError
from pipeline.logit_set.manifest import TOKENIZER_FILE
from pipeline.ragged import Ragged, stacked
from pipeline.targets import predicted_scores, softmax
from pipeline.tokenization import load_tokenizer, tokenize
from student.data import sequences
from student.model import Student, default_device

BATCH_SIZE = 256


class Predictor:
    """A trained student that reads text.

    Args:
        run: folder of a finished run.
    """

    def __init__(self, run: str | Path) -> None:
        self.student = Student.load(Path(run)).to(default_device())
        self.tokenizer = load_tokenizer(Path(run) / TOKENIZER_FILE, self.student.config.tokenizer_sha256)

    def __call__(self, sentences1: Sequence[str], sentences2: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Predicts labels, or scores for a task with scores.

        Args:
            sentences1: the (first) sentences.
            sentences2: the second sentences, for a pair task.

        Returns:
            One dict per input: ``label`` and ``probabilities`` by label name, or ``score``.

        Raises:
            ConfigError: if the student takes pairs and gets single sentences, or the other way round.
        """
        config = self.student.config
        if isinstance(sentences1, str) or isinstance(sentences2, str):
            raise ConfigError("give lists of sentences, not one string")
        if config.is_pair != (sentences2 is not None):
            raise ConfigError(f"this student of {config.task!r} takes {'pairs' if config.is_pair else 'one sentence'}")
        if sentences2 is not None and len(sentences1) != len(sentences2):
            raise ConfigError(f"{len(sentences1)} first sentences, but {len(sentences2)} second ones")
        results: list[dict[str, Any]] = []
        for start in range(0, len(sentences1), BATCH_SIZE):
            stop = start + BATCH_SIZE
            results += self._predict(sentences1[start:stop], sentences2[start:stop] if sentences2 else None)
        return results

    def _predict(self, sentences1: Sequence[str], sentences2: Sequence[str] | None) -> list[dict[str, Any]]:
        config = self.student.config
        inputs = tokenize(self.tokenizer, sentences1, sentences2, config.max_seq_length)
        ids = [Ragged.of([row.ids1 for row in inputs])]
        if config.is_pair:
            ids.append(Ragged.of([row.ids2 for row in inputs]))
        taken = stacked(sequences(config, *ids))
        ids_T, starts_S = (torch.from_numpy(part).to(self.student.device) for part in (taken.flat, taken.offsets))
        with torch.inference_mode():
            logits_BC = self.student.logits(ids_T, starts_S).cpu().numpy()
        target = config.target
        if target.kind != "classes":
            return [{"score": float(score)} for score in predicted_scores(target, logits_BC)]
        return [
            {
                "label": target.names[int(row.argmax())],
                "probabilities": {name: float(p) for name, p in zip(target.names, row, strict=True)},
            }
            for row in softmax(logits_BC)
        ]

"""A student that labels words, from its file: no torch is imported. See `student.predict.engine_predictor`."""

from collections.abc import Sequence
from functools import cached_property

from pipeline.arrays import Floats
from student.predict.engine_predictor import EnginePredictor, FolderPredictor, word_logits_by
from student.predict.predictor import Predictor
from student.predict.token_labels import WordPredictor


class WordFilePredictor(WordPredictor, EnginePredictor):
    """A student that labels words, from its file. See `Predictor` for arguments and errors."""

    def word_logits(self, sentences: Sequence[Sequence[str]]) -> Floats:
        """See `WordPredictor`."""
        return word_logits_by(self._engine, sentences)


class WordFolderPredictor(WordFilePredictor, FolderPredictor):
    """A student that labels words, from the folder of its run, by the file in it."""

    @cached_property
    def by_torch(self) -> Predictor:
        """See `FolderPredictor`."""
        from student.predict.run_words import TokenLabelPredictor

        return TokenLabelPredictor(self.folder)

"""A student that labels words, from the folder of its run: by the engine on a CPU, by torch where it does not serve it.

Shapes: T tokens of all sentences, W their words, C logits.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch

from pipeline.arrays import Floats
from pipeline.tasks.task import OUTSIDE
from pipeline.text.text_to_ids import TextReader
from pipeline.text.word_pieces import read_pieces
from student.data import in_batches
from student.model.student import TaskStudent, TokenLabelStudent
from student.predict.engine_predictor import word_logits_by
from student.predict.run_predictor import RunPredictor
from student.predict.token_labels import WordPredictor


class TokenLabelPredictor(WordPredictor, RunPredictor):
    """A student that labels words, from the folder of its run. See `Predictor` for arguments and errors."""

    student_type: ClassVar[type[TaskStudent]] = TokenLabelStudent

    def word_logits(self, sentences: Sequence[Sequence[str]]) -> Floats:
        """See `WordPredictor`."""
        engine = self.engine
        if engine is not None:
            engine.threads = torch.get_num_threads()
            return word_logits_by(engine, sentences)
        return logits_of_words(self.student, self.reader, sentences)


def logits_of_words(student: TaskStudent, reader: TextReader, sentences: Sequence[Sequence[str]]) -> Floats:
    """Returns what torch computes, see `WordPredictor.word_logits`.

    Args:
        student: a student that labels words.
        reader: what makes ids of its texts.
        sentences: the words of each text.
    """
    pieces, names = read_pieces(reader, sentences), student.config.target.names
    logits_TC = in_batches(student, [pieces.ids], len(names), student.device, of_tokens=True)
    num_words_N = np.array([len(words) for words in sentences], dtype=np.int64)
    token = pieces.by_word(np.arange(len(logits_TC)), num_words_N, -1)
    outside_1C = np.full((1, len(names)), -np.inf, np.float32)
    outside_1C[0, names.index(OUTSIDE)] = 0
    # A word without tokens has the index -1, which reads the appended row.
    return np.concatenate([logits_TC, outside_1C])[token.flat]

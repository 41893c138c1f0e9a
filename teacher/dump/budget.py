"""``distill budget --corpus``: a small control set from the teacher, and how large the whole corpus would be."""

import math
import tempfile
from pathlib import Path

from pipeline.sets.budget import Line, budget
from pipeline.sets.kinds.masked_words import MaskedWordSet
from pipeline.tasks.task import TRAIN
from teacher.config import BudgetConfig, DumpCorpus
from teacher.corpus.text import masking_plan, nothing_to_mask, open_text
from teacher.dump.corpus_size import estimate_size
from teacher.dump.driver import run_dump
from teacher.dump.executor import Processes
from teacher.kinds.masked_words import MaskedWordsDump
from teacher.models.masked_lm import load_mlm_tokenizer

SPARE = 1.2  # the sample is drawn a little larger than it need be


def corpus_budget(config: BudgetConfig) -> list[Line]:
    """What each codec costs and loses on a corpus, a line each, measured on what the teacher says about its start.

    Raises:
        DataError: if the corpus has no text of the lengths wanted, or too little.
    """
    text = open_text(config, config.max_seq_length)
    tokens = load_mlm_tokenizer(*config.teacher_for(text.corpus), config.max_seq_length)
    size = estimate_size(text, tokens, masking_plan(text, tokens, config.seed, config.num_copies))
    if not text.count(TRAIN, 0, size.documents):
        raise nothing_to_mask(text, "its training split")
    every = config.validation_every  # of so many documents one is held out, the first of all
    documents = math.ceil(SPARE * config.positions * size.documents / size.positions * every / (every - 1)) + 1
    with tempfile.TemporaryDirectory() as folder:
        sample = {name: getattr(config, name) for name in config.model_fields_set & DumpCorpus.model_fields.keys()}
        sample |= {"max_documents": min(documents, size.documents), "codec": "hidden"}
        sample |= {"store": Path(folder), "name": "control"}
        dumped = DumpCorpus(**sample)
        run_dump(MaskedWordsDump(dumped, "distill budget"), Processes.of(dumped))
        return budget(MaskedWordSet.open(Path(folder) / "control"), config.positions, size.positions)

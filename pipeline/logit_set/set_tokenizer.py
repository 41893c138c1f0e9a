"""A set's tokenizer, which must be the one that its ``distill.json`` describes."""

from pathlib import Path

from tokenizers import Tokenizer

from pipeline.errors import IntegrityError
from pipeline.logit_set.manifest import TOKENIZER_FILE
from pipeline.logit_set.records import TokenizerRecord
from pipeline.tokenization import load_tokenizer, vocabulary_size


def load_set_tokenizer(root: Path, record: TokenizerRecord) -> Tokenizer:
    """Reads the tokenizer of the set in ``root``.

    Raises:
        IntegrityError: if the file is not that tokenizer, or of another size than the record says.
    """
    path = root / TOKENIZER_FILE
    tokenizer = load_tokenizer(path, record.sha256)
    size = vocabulary_size(tokenizer)
    if size != record.vocabulary_size:
        raise IntegrityError(f"{path}: a vocabulary of {size:,}, but distill.json says {record.vocabulary_size:,}")
    return tokenizer

"""Whether a tokenizer knows the words of a text at all: one that was made up for want of a file knows none."""

import json
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from pipeline.arrays import Ragged
from pipeline.errors import DataError
from pipeline.text.tokenizer import Tokenized

MOST_UNKNOWN = 0.5  # of the tokens of some rows
ROWS = 256


def require_known(tokenizer: Tokenizer, inputs: Sequence[Tokenized], subject: str) -> None:
    """Raises DataError if most tokens of the first rows are the one that stands for unknown words.

    Args:
        tokenizer: what made tokens of them.
        inputs: the rows.
        subject: whose tokenizer it is, for the message.
    """
    require_known_ids(tokenizer, Ragged.of([[*row.ids1, *row.ids2] for row in inputs[:ROWS]]), subject)


def require_known_ids(tokenizer: Tokenizer, ids: Ragged, subject: str) -> None:
    """The same of all these rows, which are ids without special tokens."""
    unknown = _unknown_id(tokenizer)
    share = 0.0 if unknown is None else float((ids.flat == unknown).sum()) / max(1, len(ids.flat))
    if share > MOST_UNKNOWN:
        raise DataError(
            f"{subject}: its tokenizer does not know {share:.0%} of the tokens of {len(ids):,} rows looked at; is it "
            "that of another language, or made without its vocabulary file?"
        )


def _unknown_id(tokenizer: Tokenizer) -> int | None:
    """The id of the token for unknown words; None if there is none, as where every byte is a token."""
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    if model["type"] == "Unigram":
        return None if model["unk_id"] is None else int(model["unk_id"])
    token = model.get("unk_token")
    return None if token is None else tokenizer.token_to_id(token)

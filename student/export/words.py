"""What JavaScript needs of a tokenizer: BERT's WordPiece as pieces, and what becomes of each character of Unicode."""

import json
from typing import Any

from tokenizers import Tokenizer

from pipeline.arrays import Ints
from pipeline.text.wordpiece.compiled import apply_to_characters, is_compatible

BEYOND = "\uffff"  # a character that is in no piece: its word is unknown
SURROGATES = range(0xD800, 0xE000)
PLANE = 0x10000
NUM_PLANES = 17
EMPTY_PLANES = range(4, 14)  # in which Unicode has no character: what is true of one is true of all

Runs = list[tuple[int, str | None]]


def tokenizer_problems(tokenizer: Tokenizer) -> list[str]:
    """What keeps JavaScript from reading text as this tokenizer does."""
    content = json.loads(tokenizer.to_str())
    if not is_compatible(content):
        return ["the tokenizer is not BERT's WordPiece, the only one that the file can read text by"]
    strange = [token["content"] for token in content["added_tokens"] if token["normalized"] or token["single_word"]]
    return [f"the tokenizer finds {name!r} in text by rules that the file does not know" for name in strange]


def words(tokenizer: Tokenizer, ids_R: Ints, pad_id: int) -> dict[str, Any]:
    """The tokenizer as ``student.js`` reads it.

    Args:
        tokenizer: one without `tokenizer_problems`.
        ids_R: the tokens that have a row: of token ``ids_R[k]`` it is row k + 1.
        pad_id: the token that is left out.
    """
    content = json.loads(tokenizer.to_str())
    model = content["model"]
    row_of = {int(token): row for row, token in enumerate(ids_R, 1)} | {pad_id: -1}
    pieces = [tokenizer.id_to_token(int(token)) for token in ids_R]
    return {
        "pieces": pieces,
        "others": sorted(set(model["vocab"]) - set(pieces)),
        "added": [(token["content"], row_of.get(token["id"], 0)) for token in content["added_tokens"]],
        "characters": characters(tokenizer, set("".join(model["vocab"]))),
        "prefix": model["continuing_subword_prefix"],
        "unknown": model["unk_token"],
        "longest": model["max_input_chars_per_word"],
    }


def characters(tokenizer: Tokenizer, alphabet: set[str]) -> Runs:
    """What stands for each character, with spaces around what is a word of its own.

    Args:
        tokenizer: its normalizer and pre-tokenizer are asked about every character.
        alphabet: those that pieces consist of; all others are `BEYOND`.

    Returns:
        Rising code points from which on another text stands for the characters; None for each character itself.
    """
    runs: Runs = []
    for plane in range(NUM_PLANES):
        codes = range(plane * PLANE, plane * PLANE + (1 if plane in EMPTY_PLANES else PLANE))
        asked = [chr(code) for code in codes if code not in SURROGATES]
        for character, answer in zip(asked, apply_to_characters(tokenizer, asked), strict=True):
            known = "".join(c if c in alphabet or c == " " else BEYOND for c in answer)
            normal = None if known == character else known
            if not runs or runs[-1][1] != normal:
                runs.append((ord(character), normal))
    return runs

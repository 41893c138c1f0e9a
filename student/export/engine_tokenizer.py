"""The tokenizer of a student in the engine's file: what each character becomes, the pieces of words, added tokens."""

import json
import unicodedata
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from pipeline.text.wordpiece.compiled_wordpiece import (
    BETWEEN,
    apply_to_characters,
    is_compatible,
    without_vocabulary,
)

# This character occurs in no piece, so a word that contains it becomes unknown.
BEYOND = "\uffff"
SURROGATES = range(0xD800, 0xE000)
PLANE = 0x10000
NUM_PLANES = 17
# Unicode has no characters in these planes, or only private ones. Their last two code points are never characters. So
# their first and last blocks stand for the whole plane.
ALIKE_PLANES = {*range(4, 14), 15, 16}
BLOCK = 256

Runs = list[tuple[int, str | None]]
# Formats of what each character of a block becomes. Answers: one of them, or a text for each character.
KEPT, APART, REMOVED = "{}", " {} ", ""
Answers = str | list[str]


def tokenizer_problems(tokenizer: Tokenizer) -> list[str]:
    """Returns the reasons why the engine cannot read text as this tokenizer does."""
    content = json.loads(tokenizer.to_str())
    if not is_compatible(content):
        return ["the tokenizer is not BERT's WordPiece, the only one that the engine supports"]
    # The engine searches added tokens as plain text, which these two settings would change.
    strange = [token["content"] for token in content["added_tokens"] if token["normalized"] or token["single_word"]]
    problems = [f"the tokenizer finds {name!r} in text by rules that the engine does not support" for name in strange]
    # Unicode sorts the marks after a letter. The engine treats characters one by one, so no piece may depend on that
    # order.
    marks = {unicodedata.combining(c) for c in _alphabet(tokenizer) if unicodedata.category(c) != "Mn"} - {0}
    if not problems and len(marks) > 1:
        return ["the tokenizer's pieces contain marks whose order depends on their neighbours"]
    for text in [] if problems else [text for _, text in _runs(tokenizer.to_str()) if text and text != " "]:
        # A character is part of a word, or a separate word between two spaces.
        word = text[1:-1] if text.startswith(" ") and text.endswith(" ") else text
        if not word or " " in word:
            return [f"the tokenizer turns one character into {text!r}"]
    return problems


def tokens_across_words(tokenizer: Tokenizer) -> list[str]:
    """Returns the reasons why a sentence's words cannot be read one by one, for a tokenizer without problems."""
    added = json.loads(tokenizer.to_str())["added_tokens"]
    across = [token["content"] for token in added if token["rstrip"] or any(map(str.isspace, token["content"]))]
    return [f"the tokenizer finds {name!r}, which does not end with its word" for name in across]


def tokenizer_tensors(tokenizer: Tokenizer) -> dict[str, Tensor]:
    """Returns the tensors of the file, for a tokenizer without `tokenizer_problems`.

    They hold the conversion of each character, as runs of characters with the same result, and the pieces of words.
    """
    runs = _runs(tokenizer.to_str())
    vocabulary: dict[str, int] = json.loads(tokenizer.to_str())["model"]["vocab"]
    pieces = sorted((piece.encode(), number) for piece, number in vocabulary.items())
    return {
        **_texts("characters", [(text or "").encode() for _, text in runs]),
        "characters.firsts": torch.tensor([first for first, _ in runs], dtype=torch.int32),
        "characters.selves": torch.tensor([text is None for _, text in runs], dtype=torch.uint8),
        **_texts("pieces", [piece for piece, _ in pieces]),
        "pieces.ids": torch.tensor([number for _, number in pieces], dtype=torch.int32),
    }


def tokenizer_settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the settings of the file."""
    content = json.loads(tokenizer.to_str())
    model, added = content["model"], content["added_tokens"]
    return {
        "unknown": model["vocab"][model["unk_token"]],
        "prefix": model["continuing_subword_prefix"],
        "most_characters": model["max_input_chars_per_word"],
        "added": [token["content"] for token in added],
        "added_ids": [token["id"] for token in added],
    }


@lru_cache(maxsize=16)  # takes a second
def _runs(tokenizer_json: str) -> Runs:
    tokenizer = Tokenizer.from_str(tokenizer_json)
    by_first = dict(characters(tokenizer, _alphabet(tokenizer)))
    # The space character is a separator.
    before, behind = (max(first for first in by_first if first <= ord(" ") + k) for k in (0, 1))
    return sorted((by_first | {ord(" "): " ", ord(" ") + 1: by_first[behind if behind > ord(" ") else before]}).items())


def _texts(name: str, texts: list[bytes]) -> dict[str, Tensor]:
    """Returns texts end to end, and their ends."""
    ends = torch.tensor([len(text) for text in texts], dtype=torch.int64).cumsum(0).int()
    return {name: torch.from_numpy(np.frombuffer(b"".join(texts), np.uint8).copy()), f"{name}.ends": ends}


def _alphabet(tokenizer: Tokenizer) -> set[str]:
    return set("".join(json.loads(tokenizer.to_str())["model"]["vocab"]))


def characters(tokenizer: Tokenizer, alphabet: set[str]) -> Runs:
    """Returns the normalised text of each character, with spaces around characters that are words of their own.

    Args:
        tokenizer: its normalizer and pre-tokenizer are applied to every character.
        alphabet: the characters of the pieces. All others are `BEYOND`.

    Returns: Ascending code points at which the text of the characters changes, with that text, or None for the
        character itself.
    """
    runs: Runs = []
    for block, answers in _by_block(without_vocabulary(tokenizer)):
        for character, normal in _normals(block, answers, alphabet):
            if not runs or runs[-1][1] != normal:
                runs.append((ord(character), normal))
    return runs


# Takes a moment, and vocabularies differ more often than these two parts of a tokenizer.
@lru_cache(maxsize=16)
def _by_block(tokenizer_json: str) -> list[tuple[str, Answers]]:
    """Returns neighbouring characters, and what they become."""
    tokenizer = Tokenizer.from_str(tokenizer_json)
    found: list[tuple[str, Answers]] = []
    for start in range(0, NUM_PLANES * PLANE, BLOCK):
        if start // PLANE in ALIKE_PLANES and 0 < start % PLANE < PLANE - BLOCK:
            continue
        # Half a surrogate pair is no text, and the library refuses it.
        block = "".join(chr(code) for code in range(start, start + BLOCK) if code not in SURROGATES)
        if block:
            alike = _alike(tokenizer, block)
            found.append((block, apply_to_characters(tokenizer, list(block)) if alike is None else alike))
    return found


def _alike(tokenizer: Tokenizer, block: str) -> str | None:
    """Returns the format of what each character of a block becomes, or None if they differ.

    This finds nearly all of the million characters, which would take seconds one by one.
    """
    if BETWEEN in block:
        return None
    asked = BETWEEN + BETWEEN.join(block) + BETWEEN
    apart = f"{BETWEEN} " + f" {BETWEEN} ".join(block) + f" {BETWEEN}"
    removed = BETWEEN * (len(block) + 1)
    found = {asked: KEPT, apart: APART, removed: REMOVED}.get(tokenizer.normalizer.normalize_str(asked))
    if found and tokenizer.pre_tokenizer.pre_tokenize_str(block) != [(block, (0, len(block)))]:
        return None  # some of them split words
    return found


def _normals(block: str, answers: Answers, alphabet: set[str]) -> list[tuple[str, str | None]]:
    """Returns characters at which the text changes, with that text, or None for the character itself."""
    if isinstance(answers, str):
        if alphabet.isdisjoint(block):
            return [(block[0], answers.format(BEYOND))]
        answers = [answers.format(character) for character in block]
    known = alphabet | {" "}
    normals = ["".join([c if c in known else BEYOND for c in answer]) for answer in answers]
    return [(one, None if normal == one else normal) for one, normal in zip(block, normals, strict=True)]

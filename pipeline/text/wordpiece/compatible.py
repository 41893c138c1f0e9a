"""Whether the compiled code knows a ``tokenizer.json`` in every part; if not, `tokenizers` does all of the work."""

from typing import Any

MAX_VOCABULARY_BYTES = 2 * 2**20  # three times that of multilingual BERT; 40 bytes of memory for each
NORMALIZER = {"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"}
MODEL = {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"}
ADDED_TOKEN = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}


def is_compatible(content: dict[str, Any]) -> bool:
    """Whether the ids of a sentence are those of its words, and the ids of a word WordPiece's.

    Args:
        content: a tokenizer as the library itself writes it.
    """
    return (
        _is(content["normalizer"], "BertNormalizer", NORMALIZER)
        and _is(content["pre_tokenizer"], "BertPreTokenizer", {"type"})
        and _is(content["model"], "WordPiece", MODEL)
        and _is_usable(content["model"])
        and all(token.keys() == ADDED_TOKEN and token["content"] for token in content["added_tokens"])
        and _reads_each_sentence_once(content["post_processor"])
    )


def _is(part: dict[str, Any] | None, kind: str, keys: set[str]) -> bool:
    return part is not None and part["type"] == kind and part.keys() == keys


def _is_usable(model: dict[str, Any]) -> bool:
    vocabulary: dict[str, int] = model["vocab"]
    return (
        model["unk_token"] in vocabulary
        and "\0" not in model["continuing_subword_prefix"]  # which ends a string in C
        and max(vocabulary.values()) < 2**31
        and model["max_input_chars_per_word"] < 2**31
        and sum(len(token.encode()) for token in vocabulary) <= MAX_VOCABULARY_BYTES
    )


def _reads_each_sentence_once(post_processor: dict[str, Any] | None) -> bool:
    if post_processor is None or post_processor["type"] == "BertProcessing":
        return True
    return (
        post_processor["type"] == "TemplateProcessing"
        and _sentences(post_processor["single"]) == ["A"]
        and sorted(_sentences(post_processor["pair"])) == ["A", "B"]
    )


def _sentences(template: list[dict[str, Any]]) -> list[str]:
    return [piece["Sequence"]["id"] for piece in template if "Sequence" in piece]

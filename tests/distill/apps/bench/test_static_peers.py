"""The peers without layers read all of a text, and what they return is a label."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from distill.apps.bench.readers import Reader, Sentences, made_up_tokenizer, make_sentences
from distill.apps.bench.static_peers import LABELS, fasttext_reader, nanotoken_reader, static_reader

TOKENIZER = made_up_tokenizer(500)


@pytest.mark.parametrize("is_pair", [False, True])
@pytest.mark.parametrize("peer", ["model2vec", "nanotoken", "fasttext"])
def test_every_text_gets_a_label(peer: str, is_pair: bool) -> None:
    pytest.importorskip(peer)
    sentences = make_sentences(TOKENIZER, 500, 0, is_pair)
    makers: dict[str, Callable[[], Reader]] = {
        "model2vec": lambda: static_reader("peer", TOKENIZER, is_pair),
        "nanotoken": lambda: nanotoken_reader("peer", TOKENIZER, is_pair),
        "fasttext": lambda: fasttext_reader("peer", sentences),
    }
    reader = makers[peer]()
    reader.set_threads(2)
    for texts in (sentences.text, sentences.documents):
        labels = reader.predict(texts.first, texts.second)
        assert len(labels) == len(texts.first)  # type: ignore[arg-type]
        assert set(labels) <= set(LABELS)  # type: ignore[call-overload]
    assert reader.encoding is None
    assert reader.num_parameters > 0


def labels_of(reader: Reader, sentences: Sentences) -> object:
    return reader.predict(sentences.documents.first, sentences.documents.second)


@torch.inference_mode()
def test_both_tokenizers_of_model2vec_give_the_same_labels() -> None:
    pytest.importorskip("model2vec")
    pytest.importorskip("nanotoken")
    sentences = make_sentences(TOKENIZER, 500, 0, is_pair=True)
    own, other = (labels_of(make("peer", TOKENIZER, True), sentences) for make in (static_reader, nanotoken_reader))
    assert np.mean(np.array(own) == np.array(other)) > 0.99  # model2vec rounds otherwise

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram

from pipeline.errors import DataError
from pipeline.text.tokenizer import require_known, tokenize, wordpiece
from tests.helpers.messages import naming


@pytest.mark.parametrize(
    ("texts", "is_known"), [(["a b x", "a x b"], True), (["a x", "b x"], True), (["x y a", "z"], False)]
)
def test_it_is_refused_where_most_tokens_are_unknown(texts: list[str], is_known: bool) -> None:
    tokenizer = wordpiece(["a", "b"])
    inputs = tokenize(tokenizer, texts, None, 8)
    if is_known:
        require_known(tokenizer, inputs, "model x")
    else:
        with pytest.raises(DataError, match=naming("model x: ", "75%", "2 checked rows")):
            require_known(tokenizer, inputs, "model x")


def test_other_models_have_an_unknown_token_or_none() -> None:
    unigram = Tokenizer(Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0))
    with pytest.raises(DataError, match="100%"):
        require_known(unigram, tokenize(unigram, ["xx"], None, 8), "model x")
    of_bytes = Tokenizer(BPE({"a": 0}, []))
    require_known(of_bytes, tokenize(of_bytes, ["a"], None, 8), "model x")

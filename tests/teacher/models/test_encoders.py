"""Each line of the table of encoders in docs/teacher.md, against plain transformers."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from pipeline.arrays import Ragged
from pipeline.errors import ConfigError, TeacherError
from pipeline.tasks.target import make_target
from pipeline.tasks.task import Task
from teacher.models.classifier import load_teacher, new_classifier, teacher_logits
from teacher.models.encoder import load_encoder, sentence_vectors, token_vectors
from teacher.models.loaded import inference_mode
from teacher.models.masked_lm import load_masked_lm, predict_masked
from tests.helpers.encoders import FAMILIES, POSITIONS, write_encoder
from tests.helpers.messages import naming

LENGTH = 24
TEXTS = ["the dog bites the man", "a good soup", "the man bites the dog " * 8, "Straße, naïve"]
ROOT = Path(__file__).parents[3]
every_family = pytest.mark.parametrize("family", FAMILIES)


def test_the_table_has_a_line_for_each_family_and_no_other() -> None:
    text = (ROOT / "docs" / "teacher.md").read_text(encoding="utf-8")
    table = text.split("| family |")[1].split("\n\n")[0]
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == list(FAMILIES)


@every_family
def test_logits_and_token_vectors_are_those_of_transformers(family: str, roles: Task, tmp_path: Path) -> None:
    model = write_encoder(family, AutoModelForSequenceClassification, TEXTS, tmp_path, num_labels=2)
    teacher = load_teacher(roles, str(tmp_path), None, (), LENGTH)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for second in (None, TEXTS[::-1]):
        inputs = tokenizer(TEXTS, second, truncation=True, max_length=LENGTH, padding=True, return_tensors="pt")
        read = teacher.reader.tokenize(TEXTS, second, LENGTH)
        pairs = zip(inputs["input_ids"], inputs["attention_mask"].bool(), strict=True)
        assert [row.ids for row in read] == [ids[mask].tolist() for ids, mask in pairs]
        with inference_mode(torch.device("cpu"), "fp32"):
            logits_NC, expected_NC = teacher_logits(teacher, read, 2 * LENGTH), model(**inputs).logits.numpy()
        np.testing.assert_allclose(logits_NC, expected_NC, atol=1e-4)
        assert np.ptp(logits_NC, axis=0).min() > 2e-3
    with inference_mode(torch.device("cpu"), "fp32"):
        one = teacher.reader.tokenize(["man"], None, LENGTH)[0]
        vectors_VW = token_vectors(teacher, max(one.ids) + 1, 512)
        states = model.base_model(torch.tensor([[*one.ids[:2], one.ids[-1]]]), output_hidden_states=True).hidden_states
    np.testing.assert_allclose(vectors_VW[one.ids[1]], states[0][0, 1].numpy(), atol=1e-4)


@every_family
def test_masked_words_and_sentence_vectors_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    model = write_encoder(family, AutoModelForMaskedLM, TEXTS, tmp_path)
    lm = load_masked_lm(str(tmp_path), None, LENGTH)
    encoder = load_encoder(str(tmp_path), None, LENGTH, "mean")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    inputs = tokenizer(f"{tokenizer.mask_token} dog bites the man", return_tensors="pt")
    ids = inputs["input_ids"][0].tolist()
    place = ids.index(lm.tokens.mask_id)
    inner = Ragged.of([ids[1:-1]])
    with inference_mode(torch.device("cpu"), "fp32"):
        logits_PV = predict_masked(lm, inner, Ragged.of([[place - 1]]), [0])[1]
        np.testing.assert_allclose(logits_PV[0], model(**inputs).logits[0, place], rtol=1e-3, atol=1e-4)
        states_LH = AutoModel.from_pretrained(tmp_path)(**inputs).last_hidden_state[0]
        np.testing.assert_allclose(sentence_vectors(encoder, inner, 512)[0], states_LH.mean(dim=0), atol=1e-4)


def save_anew(weights: dict[str, torch.Tensor], path: Path) -> None:
    """Writes a new file, since what was loaded from the old one may still be its bytes."""
    path.unlink()
    save_file(weights, path, {"format": "pt"})


@every_family
def test_a_head_is_put_on_a_whole_encoder_alone(family: str, roles: Task, tmp_path: Path) -> None:
    write_encoder(family, AutoModel, TEXTS, tmp_path)

    def start() -> None:
        new_classifier(roles, make_target(roles), str(tmp_path), None, LENGTH)
        load_masked_lm(str(tmp_path), None, LENGTH, new_head=True)

    start()
    path = tmp_path / "model.safetensors"
    whole = load_file(path)
    layered = [name for name in whole if re.search(r"layers?\.\d", name)]
    without = {name: weight for name, weight in whole.items() if name != layered[0]}
    save_anew({f"wrapped.{name}": weight for name, weight in whole.items()}, path)
    with pytest.raises(TeacherError, match=naming(f"teacher {tmp_path}: ", "weights")):
        start()
    save_anew(without, path)
    with pytest.raises(TeacherError, match=naming(f"{tmp_path}: ", layered[0])):
        start()
    save_anew(without | {layered[0]: torch.zeros(3)}, path)
    with pytest.raises(TeacherError, match=naming(f"{tmp_path}: ", layered[0])):
        new_classifier(roles, make_target(roles), str(tmp_path), None, LENGTH)
    save_anew(without, path)
    with pytest.raises(TeacherError, match=naming(f"{tmp_path}: ", layered[0])):
        load_masked_lm(str(tmp_path), None, LENGTH, new_head=True)


@pytest.mark.parametrize("family", ["BERT", "RoBERTa", "XLM-R", "ModernBERT"])
def test_as_many_tokens_as_a_family_reads_and_no_more(family: str, roles: Task, tmp_path: Path) -> None:
    write_encoder(family, AutoModel, TEXTS, tmp_path)
    longest = POSITIONS - FAMILIES[family].offset
    with pytest.raises(ConfigError, match=naming(f"--max-seq-length: {longest + 1}", tmp_path)):
        new_classifier(roles, make_target(roles), str(tmp_path), None, longest + 1)
    teacher = new_classifier(roles, make_target(roles), str(tmp_path), None, longest)
    [full] = teacher.reader.tokenize(["dog " * POSITIONS], None, longest)
    assert len(full.ids) == longest
    with inference_mode(torch.device("cpu"), "fp32"):
        assert teacher_logits(teacher, [full], longest).shape == (1, 2)


@pytest.mark.parametrize("family", ["DistilBERT", "ModernBERT", "RoBERTa"])
def test_token_types_are_not_given_to_models_without(family: str, roles: Task, tmp_path: Path) -> None:
    write_encoder(family, AutoModelForSequenceClassification, TEXTS, tmp_path, num_labels=2)
    path = tmp_path / "tokenizer_config.json"
    offers = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "token_type_ids"]}
    path.write_text(json.dumps(json.loads(path.read_text()) | offers))
    assert "token_type_ids" in AutoTokenizer.from_pretrained(tmp_path).model_input_names
    teacher = load_teacher(roles, str(tmp_path), None, (), LENGTH)
    read = teacher.reader.tokenize(TEXTS, TEXTS, LENGTH)
    with inference_mode(torch.device("cpu"), "fp32"):
        assert teacher_logits(teacher, read, 512).shape == (len(TEXTS), 2)

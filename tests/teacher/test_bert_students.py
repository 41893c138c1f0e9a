"""Students that are BERTs, beside the BERTs of transformers."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertModel

from pipeline.errors import ConfigError, IntegrityError
from pipeline.file_names import WEIGHTS_FILE
from pipeline.sets.kinds.examples import ExampleSet
from student.data import as_read, load_examples
from student.encoders.bert import BertEncoder
from student.encoders.encoder import Encoder, without_padding
from student.encoders.specs import Bert
from student.initial_weights.bert import BertStart, bert_start, copy_layers, spread_evenly, weight_files
from student.model.build_config import build_config
from student.model.student import Student
from student.predict.predictor import Predictor
from student.pretrain_settings import PretrainSettings
from student.train import train
from student.training_data import task_facts
from teacher.tiny import create_tiny_bert
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config
from tests.helpers.toy_students import student_config
from tests.helpers.word_tasks import make_louder

PAIRS = [("anna paid ben .", "ben paid anna ."), ("the food", "was lovely , and so was all of it ."), ("anna", "ben")]


def bert_config(logit_set: ExampleSet, folder: Path, **changes: object) -> Any:
    flags = {"embedding": "bert", "matrix_size": None, "vector_size": None, "hidden_size": None}
    return tiny_config(logit_set.root, folder, **flags | changes)


@pytest.fixture(scope="module")
def deep(work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of four layers with the tokenizer of the tiny tasks."""
    folder = tmp_path_factory.mktemp("deep")
    create_tiny_bert(folder, (work / "sentences.txt").read_text().splitlines(), hidden_size=32, num_layers=4, seed=5)
    make_louder(folder)
    return folder


@pytest.fixture(scope="module")
def runs(roles_set: ExampleSet, opinion_set: ExampleSet, deep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs ``roles`` and ``opinion``, started from layers 2 and 4; read only."""
    folder = tmp_path_factory.mktemp("runs")
    for logit_set in (roles_set, opinion_set):
        more = {"init": deep, "init_layers": "2,4", "num_train_epochs": 1, "learning_rate": 1e-3}
        train(bert_config(logit_set, folder / logit_set.record.dataset_name, **more), "")
    return folder


def inputs_of(folder: Path, pairs: list[tuple[str, str]]) -> Any:
    return AutoTokenizer.from_pretrained(folder)(
        *map(list, zip(*pairs, strict=True)), padding=True, return_tensors="pt"
    )


@torch.no_grad()
def test_states_scores_and_pooler_are_those_of_transformers(deep: Path) -> None:
    theirs = BertModel.from_pretrained(deep, attn_implementation="eager").eval()
    names = Bert.model_fields.keys() - {"embedding", "vector_size", "pooler"}
    sizes = {name: getattr(theirs.config, name) for name in names}
    inputs = inputs_of(deep, PAIRS)
    separator = int(inputs["input_ids"][0, inputs["token_type_ids"][0].argmax() - 1])
    special_ids = ((1,), (separator,), (separator,))
    more = {"embedding": "bert", "head": "dense", "pairing": "joint", "special_ids": special_ids}
    ours = BertEncoder(student_config(**sizes, **more, vocabulary_size=theirs.config.vocab_size, vector_size=32)).eval()
    ours.load_state_dict(theirs.state_dict())
    expected = theirs(**inputs, output_hidden_states=True, output_attentions=True)
    ids_T, starts_S = without_padding(inputs["input_ids"], 0)
    is_token_NL = inputs["attention_mask"].bool()
    told = ours.layers(ids_T, starts_S)
    for states_TH, states_NLH in zip(told.states, expected.hidden_states, strict=True):
        torch.testing.assert_close(states_TH, states_NLH[is_token_NL], rtol=1e-5, atol=1e-5)
    mask = is_token_NL[:, None, None]

    def of_tokens(numbers_NALX: torch.Tensor) -> torch.Tensor:
        return numbers_NALX.transpose(1, 2)[is_token_NL]

    for scores_NALL, share_NALL in zip(told.scores, expected.attentions, strict=True):
        ours_NALL = scores_NALL.masked_fill(~mask, -torch.inf).softmax(-1)
        torch.testing.assert_close(of_tokens(ours_NALL), of_tokens(share_NALL), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.scan(ids_T, starts_S), told.states[-1])
    torch.testing.assert_close(ours.reduce(ids_T, starts_S), expected.pooler_output, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.exported(inputs["input_ids"], 32), expected.pooler_output, rtol=1e-5, atol=1e-5)
    layer = theirs.encoder.layer[1].attention.self
    values_NALD = layer.value(expected.hidden_states[1]).unflatten(-1, (layer.num_attention_heads, -1)).transpose(1, 2)
    torch.testing.assert_close(of_tokens(told.values[1]), of_tokens(values_NALD), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["roles", "opinion"])
def test_the_run_is_a_folder_that_transformers_loads_with_the_same_logits(runs: Path, name: str) -> None:
    predictor = Predictor(runs / name)
    model = AutoModelForSequenceClassification.from_pretrained(runs / name)
    assert type(model).__name__ == "BertForSequenceClassification"
    assert tuple(model.config.id2label.values()) == predictor.student.config.target.names
    first, second = zip(*PAIRS, strict=True)
    texts = (first, second) if name == "roles" else (first,)
    inputs = AutoTokenizer.from_pretrained(runs / name)(*map(list, texts), padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = model.eval()(**inputs).logits.numpy()
    logits_NC = predictor.logits(*texts)
    np.testing.assert_allclose(logits_NC, expected, rtol=0, atol=1e-5)
    assert np.ptp(logits_NC, axis=0).min() > 1e-3
    assert predictor.encode(first).shape == (3, 32)


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a folder under the names that `transformers` gives them."""
    return load_file(folder / WEIGHTS_FILE)


def test_a_run_starts_from_its_teachers_layers_unless_another_bert_is_named(
    roles_set: ExampleSet, work: Path, deep: Path, tmp_path: Path
) -> None:
    still = {"num_train_epochs": 1, "learning_rate": 1e-30}
    record = train(bert_config(roles_set, tmp_path / "teachers", **still), "")
    chosen = train(bert_config(roles_set, tmp_path / "deep", init=deep, init_layers="4,1", **still), "")
    assert (record["settings"]["init_layers"], chosen["settings"]["init_layers"]) == ([1], [4, 1])
    teacher, student = (
        stored(work / "teachers" / "roles"),
        stored(tmp_path / "teachers"),
    )
    copied = {name for name in teacher if torch.allclose(teacher[name], student[name], rtol=0, atol=1e-20)}
    assert teacher.keys() - copied == {"classifier.weight", "classifier.bias"} == student.keys() - copied
    deep_weights, student = stored(deep), stored(tmp_path / "deep")
    for name, number in (("bert.encoder.layer.0.", 3), ("bert.encoder.layer.1.", 0)):
        parts = [key.removeprefix(name) for key in student if key.startswith(name)]
        assert len(parts) == 16
        sources = (deep_weights[f"encoder.layer.{number}.{part}"] for part in parts)
        assert all(
            torch.allclose(student[name + p], s, rtol=0, atol=1e-20) for p, s in zip(parts, sources, strict=True)
        )


def test_a_bert_run_can_be_started_from_and_trained_on(roles_set: ExampleSet, runs: Path, tmp_path: Path) -> None:
    shape = {"num_train_epochs": 1, "init": runs / "roles"}
    record = train(bert_config(roles_set, tmp_path, **shape), "")
    assert record["settings"]["init_layers"] == [1, 2]
    before, after = stored(runs / "roles"), stored(tmp_path)
    words = "bert.embeddings.word_embeddings.weight"
    ids = load_examples(roles_set, "train")
    used = np.unique(np.concatenate([part.flat for part in ids.sequences]))
    is_moved_V = (before[words] != after[words]).any(dim=1)
    assert is_moved_V[torch.from_numpy(used)].all()
    assert not is_moved_V[0]  # the padding
    assert int((~is_moved_V).sum()) > 5  # tokens that no text has keep what the teacher knows


def test_old_names_fewer_bytes_and_a_missing_pooler_are_read(runs: Path, deep: Path, tmp_path: Path) -> None:
    shutil.copytree(deep, tmp_path / "old")
    old = {name: name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta") for name in stored(deep)}
    renamed = {"bert." + old[name]: t for name, t in stored(deep).items() if not name.startswith("pooler.")}
    save_file({name: tensor.half() for name, tensor in renamed.items()}, tmp_path / "old" / WEIGHTS_FILE)
    encoder = Student.load(runs / "roles").encoder
    pooler = encoder.state_dict()["pooler.dense.weight"].clone()
    copy_layers(BertStart(tmp_path / "old", weight_files(tmp_path / "old"), (3, 2), encoder_sizes(encoder)), encoder)
    state = encoder.state_dict()
    for name, source in (("embeddings.LayerNorm.bias",) * 2, ("encoder.layer.1.output.dense.weight",) * 2):
        torch.testing.assert_close(state[name], stored(deep)[source].half().float())
    assert torch.equal(state["pooler.dense.weight"], pooler)
    renamed.pop("bert.encoder.layer.1.output.dense.weight")
    save_file(renamed, tmp_path / "old" / WEIGHTS_FILE)
    with pytest.raises(IntegrityError, match=naming("old/model.safetensors: ", "encoder.layer.1.output.dense.weight")):
        copy_layers(
            BertStart(tmp_path / "old", weight_files(tmp_path / "old"), (3, 2), encoder_sizes(encoder)), encoder
        )


def test_weights_in_several_files_are_those_in_one(roles_set: ExampleSet, work: Path, tmp_path: Path) -> None:
    one, several = work / "teachers" / "roles", tmp_path / "several"
    shutil.copytree(one, several, ignore=shutil.ignore_patterns("*.safetensors"))
    AutoModelForSequenceClassification.from_pretrained(one).save_pretrained(several, max_shard_size="20KB")
    assert len(list(several.glob("model-0*.safetensors"))) > 2
    teacher = roles_set.record.teacher.model_copy(update={"name": str(several)})
    named = replace(roles_set, record=roles_set.record.model_copy(update={"teacher": teacher}))
    flags = bert_config(roles_set, tmp_path / "run")
    starts = [bert_start(flags.encoder, flags.start, logit_set) for logit_set in (roles_set, named)]
    states: list[dict[str, torch.Tensor]] = []
    for start in starts:
        assert start is not None
        torch.manual_seed(len(states))
        encoder = Student(
            build_config(bert_config(roles_set, tmp_path), task_facts(roles_set), start.inherited)
        ).encoder
        copy_layers(start, encoder)
        states.append(encoder.state_dict())
    assert starts[0] != starts[1]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    index = several / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00001", "../model-00001"))
    with pytest.raises(IntegrityError, match=naming("model.safetensors.index.json: ", "../model-00001-of-00006")):
        bert_start(flags.encoder, flags.start, named)


@pytest.mark.parametrize("name", ["roles", "opinion"])
def test_the_mean_of_cls_is_our_own(name: str, deep: Path, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    logit_set = request.getfixturevalue(f"{name}_set")
    flags = {"init": deep, "init_layers": "2,4", "pooler": "mean-cls", "head": "plain-mlp", "hidden_size": 8}
    record = train(bert_config(logit_set, tmp_path, num_train_epochs=1, **flags), "")
    assert record["settings"]["pooler"] == "mean-cls"
    student = Student.load(tmp_path)
    encoder = student.encoder
    assert isinstance(encoder, BertEncoder)
    ids_T, starts_S = as_read(load_examples(logit_set, "train"), student.config).batch([0, 5, 7])
    with torch.no_grad():
        states = encoder.layers(ids_T, starts_S).states
        mean_NH = (states[1][starts_S[:-1]] + states[2][starts_S[:-1]]) / 2
        torch.testing.assert_close(encoder.reduce(ids_T, starts_S), mean_NH)
    assert not any("pooler" in key for key in encoder.state_dict())
    first, second = zip(*PAIRS, strict=True)
    texts = (first, second) if name == "roles" else (first,)
    logits_NC = Predictor(tmp_path).logits(*texts)
    assert np.ptp(logits_NC, axis=0).min() > 1e-4
    with pytest.raises(ValueError, match="model_type"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert "`BertForSequenceClassification`" not in (tmp_path / "README.md").read_text()


def encoder_sizes(encoder: Encoder) -> Bert:
    assert isinstance(encoder, BertEncoder)
    return encoder.spec


@pytest.mark.parametrize(("count", "of", "expected"), [(3, 6, (2, 4, 6)), (3, 12, (4, 8, 12)), (1, 3, (3,))])
def test_layers_are_spread_evenly(count: int, of: int, expected: tuple[int, ...]) -> None:
    assert spread_evenly(count, of) == expected


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"init_layers": "2,5"}, naming("--init-layers 2,5: ", "4 layers")),
        ({"num_hidden_layers": 5}, naming("--num-hidden-layers 5: ", "4", "--init")),
        ({"num_hidden_layers": 1, "init_layers": "1,2"}, naming("--num-hidden-layers 1: ", "2")),
        ({"vector_size": 64}, naming("--vector-size 64: ", "32")),
        ({"matrix_size": 3}, naming("--matrix-size: ", "--embedding hybrid")),
        ({"head": "mlp"}, naming("--head mlp: ", "--embedding bert", "dense")),
        ({"pairing": "diffcat"}, naming("--pairing diffcat: ", "--embedding bert")),
        ({"window_size": 8}, naming("--window-size: ", "--embedding hybrid")),
        ({"token_dropout": 0.1}, naming("--token-dropout: ", "--embedding bert")),
        ({"pooler": "mean-cls", "head": "bilstm"}, naming("--head bilstm: ", "--embedding bert", "dense")),
        ({"embedding": "cbow", "pooler": "mean-cls"}, naming("--pooler: ", "--embedding bert")),
        ({"embedding": "cbow"}, naming("--init-layers: ", "--embedding bert")),
        ({"init": "noise", "num_attention_heads": 5}, naming("5 heads", "384")),
        (
            {"init": "noise", "intermediate_size": 2**19},
            naming("--intermediate-size: ", 262144),
        ),
    ],
)
def test_flags_that_do_not_fit_are_refused_before_the_run(
    roles_set: ExampleSet, deep: Path, tmp_path: Path, changes: dict[str, object], match: str
) -> None:
    settings: dict[str, object] = {"init": deep} | ({"init_layers": "1"} if "embedding" in changes else {})
    with pytest.raises(ConfigError, match=match):
        train(bert_config(roles_set, tmp_path / "run", **settings | changes), "")
    assert not (tmp_path / "run").exists()


def test_a_bert_is_no_start_for_sums(opinion_set: ExampleSet, runs: Path, tmp_path: Path) -> None:
    flags = {"embedding": "cbow", "vector_size": 32, "init": runs / "opinion"}
    with pytest.raises(ConfigError, match=naming(f"--init {runs / 'opinion'}: ", "embedding is 'bert'")):
        train(bert_config(opinion_set, tmp_path / "run", **flags), "")


def test_pretraining_takes_no_bert() -> None:
    with pytest.raises(ConfigError, match="--embedding bert: "):
        PretrainSettings.from_flags(embedding="bert", set="x")


def test_a_teacher_that_is_gone_changed_or_no_bert_is_told(roles_set: ExampleSet, deep: Path, tmp_path: Path) -> None:
    def start(logit_set: ExampleSet, **changes: object) -> object:
        flags = bert_config(logit_set, tmp_path / "run", **changes)
        return bert_start(flags.encoder, flags.start, logit_set)

    def named(folder: Path) -> ExampleSet:
        teacher = roles_set.record.teacher.model_copy(update={"name": str(folder)})
        return replace(roles_set, record=roles_set.record.model_copy(update={"teacher": teacher}))

    with pytest.raises(ConfigError, match=naming("--embedding bert: ", "model.safetensors", "--init FOLDER")):
        start(named(tmp_path / "gone"))
    assert start(named(tmp_path / "gone"), init="noise") is None
    with pytest.raises(ConfigError, match=naming("--embedding bert: ", "store/roles", "--init")):
        start(named(deep))
    shutil.copytree(deep, tmp_path / "other")
    (tmp_path / "other" / "config.json").write_text('{"model_type": "distilbert"}')
    with pytest.raises(ConfigError, match=naming("other: ", "'distilbert'", "--init FOLDER")):
        start(roles_set, init=tmp_path / "other")
    create_tiny_bert(tmp_path / "words", ["other words"], hidden_size=32, num_layers=1)
    with pytest.raises(ConfigError, match=naming("--init", "words: ", "tokenizer.json")):
        start(roles_set, init=tmp_path / "words")

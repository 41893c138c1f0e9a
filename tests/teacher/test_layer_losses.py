"""What students learn from stored layers, held against a live teacher."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import BertModel

from pipeline.errors import ConfigError
from pipeline.record_file import read_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import make_target
from pipeline.tasks.task import load_task
from student.data import Examples, as_read, load_chosen, load_examples, row_weights
from student.encoders.bert import BertEncoder
from student.initial_weights.bert import bert_start, copy_layers
from student.layer_stage import LayerTask, layer_loss
from student.lessons.examples import ExampleTask
from student.losses.layer_losses import LayerLoss
from student.losses.layers import kinds, negatives
from student.losses.ted_filters import train_filters
from student.model.student import Student
from student.model.weights import read_weights
from student.pretrain_settings import FiltersSettings
from student.settings import TrainSettings
from student.source_settings import Query, Sets
from student.train import train
from student.training_data import build_student_config, task_facts
from teacher.dumps import dump
from teacher.finetune.common import save_teacher
from teacher.models.classifier import new_classifier
from teacher.tiny import create_tiny_bert
from tests.helpers.dumps import dump_config
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config
from tests.helpers.word_tasks import make_louder

EXACT = {"states": "all", "attention": "all", "values": "all"}
EXACT |= {f"{name}_codec": "float32" for name in EXACT}
BERT = {"embedding": "bert", "matrix_size": None, "vector_size": None, "hidden_size": None}
STAGES = {"layer_loss": "hid-cls", "intermediate_epochs": 2, "num_train_epochs": 1}
NOISE = {"layers": "1,2", "init": "noise", "num_hidden_layers": 2, "vector_size": 64}
NOISE |= {"num_attention_heads": 2, "initializer_range": 0.3}
CONTRAST = "hid-cls-contrast"
ROWS = np.array([0, 3, 4, 11])
ALL = ["hid-cls", "pkd", "hid-seq", "att-mse", "att-kl", "val-kl", "att-kl+val-kl"]


@pytest.fixture(scope="module")
def exact(work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the tasks of sentences and of pairs, and the exact outputs of all layers. Do not change it."""
    folder = tmp_path_factory.mktemp("exact")
    words = (work / "sentences.txt").read_text().splitlines()
    create_tiny_bert(folder / "bert", words, hidden_size=64, num_layers=2, seed=5)
    make_louder(folder / "bert")
    for name in ("opinion", "roles"):
        task = load_task(manifest=work / f"{name}.yaml")
        teacher = new_classifier(task, make_target(task), str(folder / "bert"), None, 32)
        save_teacher(teacher.model, teacher.name, teacher.revision, folder / "teachers" / name)
        flags = EXACT | {"model_name_or_path": str(folder / "teachers" / name)}
        dump(dump_config(work, name, folder, **flags), "distill teacher-dump")
    return folder


@pytest.fixture(scope="module", params=["opinion", "roles"])
def exact_set(request: pytest.FixtureRequest, exact: Path) -> ExampleSet:
    return ExampleSet.open(exact / request.param)


def bert_flags(logit_set: ExampleSet, folder: Path, **changes: object) -> TrainSettings:
    return tiny_config(logit_set.root, folder, **BERT | changes)


def lesson(flags: TrainSettings, logit_set: ExampleSet) -> tuple[Student, LayerLoss, Examples]:
    """A student from noise, what its layers learn by, and the rows as it reads them."""
    facts = task_facts(logit_set)
    config, _ = build_student_config(flags, logit_set, facts)
    torch.manual_seed(1)
    student = Student(config)
    chosen = flags.source.chosen if isinstance(flags.source, Sets) else None
    rows = load_chosen(logit_set, chosen.query) if isinstance(chosen, Query) else load_examples(logit_set, "train")
    examples = as_read(rows, config)
    assert flags.layers is not None
    weight_N = row_weights(flags.loss.class_weights, examples)
    loss = layer_loss(flags.layers, student, logit_set, facts["special_ids"], examples, weight_N)
    return student.eval(), loss, examples


class Live:
    """A teacher that predicts one row at a time."""

    def __init__(self, folder: Path) -> None:
        self.model = BertModel.from_pretrained(folder).eval()

    @torch.no_grad()
    def says(self, ids: Tensor, types: Tensor) -> dict[str, list[Tensor]]:
        """Of each layer the states [L, H], and of each but the first one scores and relations [A, L, L]."""
        states = self.model(ids[None], token_type_ids=types[None], output_hidden_states=True).hidden_states
        said: dict[str, list[Tensor]] = {"states": [one[0] for one in states], "scores": [], "relations": []}
        for layer, read in zip(self.model.encoder.layer, states, strict=False):
            own = layer.attention.self
            heads = own.num_attention_heads
            parts = (part(read[0]).unflatten(1, (heads, -1)) for part in (own.query, own.key, own.value))
            q, k, v = (part.transpose(0, 1) for part in parts)
            said["scores"].append(q @ k.mT / q.shape[-1] ** 0.5)
            said["relations"].append(v @ v.mT / v.shape[-1] ** 0.5)
        return said


def by_hand(name: str, ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> Tensor:
    """A layer loss of one row and layer, from the outputs of student and teacher for that row alone."""
    if name == "hid-seq":
        return functional.mse_loss(ours["states"], theirs["states"])
    if name == "hid-cls":
        return functional.mse_loss(ours["states"][0], theirs["states"][0])
    if name == "pkd":
        first, other = (one["states"][0] / one["states"][0].norm() for one in (ours, theirs))
        return torch.dist(first, other) ** 2
    if name == "att-mse":
        return functional.mse_loss(ours["scores"], theirs["scores"])
    part = "scores" if name == "att-kl" else "relations"
    teacher, student = theirs[part].softmax(-1), ours[part].softmax(-1)
    divergence: Tensor = (teacher * (teacher.log() - student.log())).sum(-1).mean()
    return divergence


def own_types(student: Student, ids: Tensor) -> Tensor:
    """The type of each token that a bert reads."""
    is_separator = torch.eq(ids, student.config.special_ids[2][0])  # type: ignore[index]
    return (is_separator.cumsum(0) > is_separator.long()).long()


def check_gradients(encoder: BertEncoder, losses: tuple[Tensor, Tensor]) -> None:
    """Checks that two losses have the same gradients, and that there are some."""
    names, parameters = zip(*((n, p) for n, p in encoder.named_parameters() if "pooler" not in n), strict=True)
    gradients = [torch.autograd.grad(loss, parameters, allow_unused=True) for loss in losses]
    assert any(gradient is not None and gradient.abs().max() > 1e-4 for gradient in gradients[0])
    for name, ours, hand in zip(names, *gradients, strict=True):
        assert (ours is None) == (hand is None), name
        if ours is not None:
            torch.testing.assert_close(ours, hand, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("layer_loss", ALL)
def test_loss_and_gradient_are_those_of_a_live_teacher(layer_loss: str, exact_set: ExampleSet, tmp_path: Path) -> None:
    flags = bert_flags(exact_set, tmp_path, layer_loss=layer_loss, **NOISE)
    student, layers, examples = lesson(flags, exact_set)
    encoder = student.encoder
    assert isinstance(encoder, BertEncoder)
    assert not layers.maps
    ids_T, starts_S = examples.batch(ROWS)
    stored = layers(*layers.read(student, ids_T, starts_S), starts_S, ROWS)
    live, losses = Live(exact_set.root.parent / "teachers" / exact_set.name), []
    for n in range(len(ROWS)):
        ids = ids_T[starts_S[n] : starts_S[n + 1]]
        theirs, told = live.says(ids, own_types(student, ids)), encoder.layers(ids, torch.tensor([0, len(ids)]))
        relations = [v[0] @ v[0].mT / v.shape[-1] ** 0.5 for v in told.values]
        for k in (1, 2):
            one = {"states": told.states[k], "scores": told.scores[k - 1][0], "relations": relations[k - 1]}
            other = {part: theirs[part][k - (part != "states")] for part in one}
            losses += [by_hand(name, one, other) for name in layer_loss.split("+")]
    expected = torch.stack(losses).sum() / len(ROWS)
    torch.testing.assert_close(stored, expected, rtol=1e-5, atol=1e-6)
    check_gradients(encoder, (stored, expected))


def test_contrast_and_its_gradient_are_those_of_a_live_teacher(exact_set: ExampleSet, tmp_path: Path) -> None:
    student, layers, examples = lesson(bert_flags(exact_set, tmp_path, layer_loss=CONTRAST, **NOISE), exact_set)
    encoder, contrast = student.encoder, layers.contrast
    assert isinstance(encoder, BertEncoder)
    assert contrast is not None
    ids_T, starts_S = examples.batch(ROWS)
    torch.manual_seed(3)
    stored = layers(*layers.read(student, ids_T, starts_S), starts_S, ROWS)
    torch.manual_seed(3)
    drawn = negatives(kinds(exact_set.record.target, examples), layers.is_known_N, ROWS)
    live = Live(exact_set.root.parent / "teachers" / exact_set.name)

    def teachers(row: int) -> Tensor:
        ids = examples.batch([row])[0]
        states = live.says(ids, own_types(student, ids))["states"]
        return functional.normalize(contrast.teacher_map(torch.cat([states[1][0], states[2][0]])), dim=0)

    of_row = {row: teachers(row) for row in {*ROWS.tolist(), *drawn.ravel().tolist()}}
    losses = []
    for row, others in zip(ROWS.tolist(), drawn.tolist(), strict=True):
        assert all(examples.label_N[other] != examples.label_N[row] for other in others)
        ids = examples.batch([row])[0]
        told = encoder.layers(ids, torch.tensor([0, len(ids)]))
        ours = functional.normalize(contrast.student_map(torch.cat([told.states[k][0] for k in (1, 2)])), dim=0)
        likeness = torch.stack([(ours @ of_row[other] / 0.07).exp() for other in (row, *others)])
        losses.append(-(likeness[0] / likeness.sum()).log())
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(stored, expected, rtol=1e-5, atol=1e-6)
    check_gradients(encoder, (stored, expected))


@pytest.mark.parametrize(
    "changes", [*({"layer_loss": name, **BERT, **NOISE} for name in (*ALL, CONTRAST)), {"layer_loss": "hid-seq"}]
)
def test_a_rows_weight_multiplies_its_loss(changes: dict[str, Any], exact: Path, tmp_path: Path) -> None:
    logit_set = ExampleSet.open(exact / "roles")
    query = "select source_row, variant, 1 + source_row % 3 as weight from roles"
    plain, weighed = (
        lesson(tiny_config(logit_set.root, tmp_path, query=chosen, **changes), logit_set) for chosen in (None, query)
    )
    losses: list[list[float]] = []
    for student, layers, examples in (plain, weighed):
        losses.append([])
        for row in ROWS:
            torch.manual_seed(3)
            ids_T, starts_S = examples.batch([row])
            losses[-1].append(float(layers(*layers.read(student, ids_T, starts_S), starts_S, np.array([row])).detach()))
    mean = np.mean(1 + examples.key_N2[:, 0] % 3)
    assert losses[1] == pytest.approx([loss * (1 + row % 3) / mean for loss, row in zip(losses[0], ROWS, strict=True)])
    assert min(losses[0]) > 0


def test_a_student_that_is_its_teacher_has_nothing_to_learn(exact_set: ExampleSet, tmp_path: Path) -> None:
    flags = bert_flags(exact_set, tmp_path, layer_loss="hid-seq+att-mse+val-kl", init_layers="1,2")
    student, layers, examples = lesson(flags, exact_set)
    start = bert_start(flags.encoder, flags.start, exact_set)
    assert start is not None
    copy_layers(start, student.encoder)
    ids_T, starts_S = examples.batch(ROWS)
    assert float(layers(*layers.read(student, ids_T, starts_S), starts_S, ROWS).detach()) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("embedding", ["hybrid", "lstm"])
def test_states_stand_at_the_tokens_that_a_student_without_layers_reads(
    embedding: str, exact_set: ExampleSet, tmp_path: Path
) -> None:
    changes = {"matrix_size": None} if embedding == "lstm" else {}
    flags = tiny_config(exact_set.root, tmp_path, layer_loss="hid-seq", embedding=embedding, **changes)
    _, layers, examples = lesson(flags, exact_set)
    ids_T, starts_S = examples.batch(ROWS)
    (target,) = layers._targets.values()
    (layer,) = target.store.signal.layers[-1:]
    states_TH, live = target.states(layer, ROWS), Live(exact_set.root.parent / "teachers" / exact_set.name)
    assert len(states_TH) == len(ids_T)
    before, between, after = task_facts(exact_set)["special_ids"]
    for n, row in enumerate(ROWS):
        sentences = [part.take([row]).flat.tolist() for part in examples.sequences]
        ids, types = [*before, *sentences[0]], [0] * (len(before) + len(sentences[0]))
        places = [list(range(len(before), len(ids)))]
        for sentence in sentences[1:]:
            ids, types = [*ids, *between], [*types, *[0] * len(between)]
            places.append(list(range(len(ids), len(ids) + len(sentence))))
            ids, types = [*ids, *sentence], [*types, *[1] * len(sentence)]
        ids, types = [*ids, *after], [*types, *[types[-1]] * len(after)]
        theirs = live.says(torch.tensor(ids), torch.tensor(types))["states"][layer]
        for which, place in enumerate(places):
            sequence = which * len(ROWS) + n
            found = states_TH[starts_S[sequence] : starts_S[sequence + 1]]
            torch.testing.assert_close(found, theirs[place], rtol=1e-4, atol=1e-5)


def losses_of(run: Path, key: str) -> list[float]:
    return [entry["loss"] for entry in read_record(run / "run.json")["result"][key]]


@pytest.mark.parametrize(
    "changes", [BERT | {"layer_loss": "att-kl+hid-seq", "learning_rate": 1e-3}, {"layer_loss": "hid-cls"}]
)
def test_layers_alone_and_then_logits(changes: dict[str, Any], exact: Path, tmp_path: Path) -> None:
    more = changes | {"intermediate_epochs": 3, "num_train_epochs": 1}
    record = train(tiny_config(exact / "opinion", tmp_path / "run", **more), "")
    losses = losses_of(tmp_path / "run", "intermediate")
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert len(record["result"]["history"]) == 1
    assert not (tmp_path / "run" / "intermediate").exists()
    again = tmp_path / "again"
    train(tiny_config(exact / "opinion", again, **more), "")
    first, second = read_weights(tmp_path / "run"), read_weights(again)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_stopped_between_its_stages_goes_on_with_the_second(
    exact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    runs = {name: tiny_config(exact / "opinion", tmp_path / name, **STAGES) for name in ("stopped", "whole")}
    with monkeypatch.context() as patched:
        patched.setattr(ExampleTask, "loss", stop)
        with pytest.raises(KeyboardInterrupt):
            train(runs["stopped"], "")
    assert (tmp_path / "stopped" / "intermediate" / "model.safetensors").exists()
    with monkeypatch.context() as patched:
        patched.setattr(LayerTask, "loss", stop)  # it is not done again
        train(runs["stopped"], "")
    train(runs["whole"], "")
    first, second = (read_weights(tmp_path / name) for name in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_stage_stopped_in_an_epoch_draws_the_same_negatives_when_it_goes_on(
    exact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, steps = LayerTask.loss, itertools.count()

    def stopping(task: LayerTask, batch: list[int]) -> Any:
        if next(steps) == 5:  # of the second epoch of three steps
            raise KeyboardInterrupt
        return loss(task, batch)

    runs = {
        name: tiny_config(exact / "opinion", tmp_path / name, **STAGES | {"layer_loss": CONTRAST})
        for name in ("stopped", "whole")
    }
    with monkeypatch.context() as patched:
        patched.setattr(LayerTask, "loss", stopping)
        with pytest.raises(KeyboardInterrupt):
            train(runs["stopped"], "")
    for config in runs.values():
        train(config, "")
    assert losses_of(tmp_path / "stopped", "intermediate") == losses_of(tmp_path / "whole", "intermediate")
    first, second = (read_weights(tmp_path / name) for name in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_layers_beside_the_logits_change_what_is_learnt(exact: Path, tmp_path: Path) -> None:
    train(tiny_config(exact / "roles", tmp_path / "a", layer_loss="hid-seq"), "")
    train(tiny_config(exact / "roles", tmp_path / "b"), "")
    first, second = read_weights(tmp_path / "a"), read_weights(tmp_path / "b")
    assert first.keys() == second.keys()
    assert not torch.equal(first["encoder.vectors.table.weight"], second["encoder.vectors.table.weight"])


def test_filters_are_learnt_and_learnt_through(exact: Path, tmp_path: Path) -> None:
    flags = {"set": str(exact / "roles"), "output_dir": tmp_path / "filters", "dim": 6, "num_train_epochs": 4}
    record = train_filters(FiltersSettings.from_flags(**flags, layers="2"), "distill filters")
    losses = [entry["loss"] for entry in record["result"]["history"]]
    assert losses[-1] < losses[0]
    config = tiny_config(exact / "roles", tmp_path / "run", layer_loss="hid-seq", filters=tmp_path / "filters")
    _, layers, examples = lesson(config, ExampleSet.open(exact / "roles"))
    assert layers.maps["states-2"].out_features == 6
    (target,) = layers._targets.values()
    assert layers.filters is not None
    rows = np.arange(len(examples))
    filtered = layers.filters(2, target.first(2, rows))
    assert filtered.mean(dim=0).abs().max() < 1e-4
    assert filtered.square().mean() == pytest.approx(1, abs=1e-3)
    train(config, "")
    with pytest.raises(ConfigError, match=naming("filters: ", "distill filters")):
        train(
            tiny_config(exact / "opinion", tmp_path / "other", layer_loss="hid-seq", filters=tmp_path / "filters"), ""
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": "2"}, naming("--layers: ", "--layer-loss")),
        ({"layer_loss": "att-kl"}, naming("--layer-loss att-kl: ", "--embedding hybrid")),
        ({"layer_loss": "hid-seq", "layers": "1,2"}, "student"),
        ({"layer_loss": "hid-seq", "layers": "9"}, naming("layer 9", "--keep states=9")),
        ({"layer_loss": "hid-seq", "token_dropout": 0.1}, naming("--token-dropout: ", "--layer-loss hid-seq")),
        ({"layer_loss": "hid-cls", "intermediate_epochs": 1, "layer_loss_weight": 2.0}, "--intermediate-epochs"),
        ({"layer_loss": "hid-cls", "filters": Path("filters")}, naming("--filters: ", "--layer-loss hid-seq")),
        ({"layer_loss": "hid-cls", "head": "bilstm"}, "tokens"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_flag(
    changes: dict[str, Any], message: str, exact: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(tiny_config(exact / "opinion", tmp_path / "run", **changes), "")
    assert not (tmp_path / "run").exists()


def test_a_set_without_layers_says_how_to_get_them(roles_set: ExampleSet, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--layer-loss att-kl: ", "--keep attention", "--manifest roles.yaml")):
        train(bert_flags(roles_set, tmp_path / "run", layer_loss="att-kl", layers="1", init="noise"), "")

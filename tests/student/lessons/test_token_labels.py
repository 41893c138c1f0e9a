"""Students of labelled words: what they learn, how they are scored and used, and what they do not support."""

import copy
import json
import pickle  # noqa: TID251 - what multiprocessing does
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer

from distill.apps.app_settings import ServeSettings
from distill.apps.serve.app import App
from distill.apps.serve.drift import AT_ONCE
from distill.apps.serve.prometheus import Metrics
from distill.apps.serve.served import Served
from pipeline.arrays import Ragged
from pipeline.errors import DataError, FingerprintMismatchError
from pipeline.sets.kinds.token_labels import TokenLabelSet
from pipeline.tasks.spans import spans, word_scores
from pipeline.text.word_pieces import Pieces
from student.evaluate import evaluate, evaluate_file
from student.lessons.token_labels import TokenLabelLesson, TokenLabelTask
from student.model.build_config import build_token_label_config
from student.model.student import TokenLabelStudent, beside
from student.predict.multi_task import MultiTaskPredictor
from student.predict.predictor import Predictor
from student.predict.word_answers import WORD
from student.run_settings import EvaluateSettings
from student.settings import TrainSettings
from student.train import train
from student.training_data import task_facts
from tests.helpers.asgi import ask
from tests.helpers.commands import invoke, piped
from tests.helpers.entities import LABELS, lookup_span_f1
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config
from tests.helpers.words import dump_entities, right_teacher, write_random_teacher

TEXT = "On Monday, Paris Hilton met london in Jordan!"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("entities")
    write_random_teacher(folder, 400)
    return folder


@pytest.fixture(scope="module")
def entities(folder: Path) -> TokenLabelSet:
    """A set whose teacher is always right."""
    return right_teacher(dump_entities(folder, token_vectors=False, teacher_labels=",".join(LABELS)))


@pytest.fixture(scope="module")
def run(folder: Path, entities: TokenLabelSet) -> Path:
    config = tiny_config(entities.root, folder / "run", vector_size=20, num_train_epochs=8, alpha=0.0)
    train(config, "distill train-student")
    return folder / "run"


def test_a_server_returns_words_and_spans(run: Path) -> None:
    app = App({"run": Served(run, Metrics(1))}, ServeSettings(runs=(str(run),)), Metrics(1))
    expected = Predictor(run)([TEXT, "ben smiled"])
    one, several = ({"inputs": TEXT}, {"inputs": [[TEXT], ["ben smiled"]]})
    assert ask(app, "POST", "/predict", one).json == expected[0]
    assert ask(app, "POST", "/runs/run/predict", several | {"truncate": False}).json == expected
    (shown,) = ask(app, "GET", "/runs").json
    assert (shown["labels_words"], shown["labels"]) == (True, [*LABELS])
    assert "token_classifier" in ask(app, "GET", "/info").json["model_type"]


@pytest.mark.parametrize("path", ["/", "/tasks", "/embed", "/teacher"])
def test_a_server_refuses_what_words_do_not_have(run: Path, path: str) -> None:
    app = App({"run": Served(run, Metrics(1))}, ServeSettings(runs=(str(run),)), Metrics(1))
    assert ask(app, "POST", path, {"inputs": TEXT}).status == 422
    assert ask(app, "POST", "/predict", {"inputs": TEXT, "raw_scores": True}).status == 422
    assert ask(app, "POST", "/predict", {"inputs": [TEXT, TEXT]}).status == 422  # a pair


def test_the_inputs_of_a_server_are_counted(run: Path) -> None:
    served = Served(run, Metrics(1))
    assert served.recent is not None
    served.labelled([TEXT] * AT_ONCE)
    assert {drift.num_inputs for drift in served.recent.drift()} == {AT_ONCE}


def test_the_baseline_is_fitted_on_the_training_sentences(folder: Path, run: Path) -> None:
    found = [
        json.loads(invoke("evaluate", run, "--baseline", "--json", *more).stdout)
        for more in ((), ("--data", folder / "validation.jsonl"))
    ]
    ((on_set,), (on_file,)) = (list(one.values()) for one in found)
    assert on_set["baseline"] == on_file["baseline"]
    # A fifth of the names occur in the validation alone, so the word itself does not suffice.
    assert on_set["baseline"]["scores"]["span_f1"] > 2 * lookup_span_f1(folder)


def test_it_learns_from_the_logits_alone_what_context_says(run: Path, entities: TokenLabelSet) -> None:
    record = json.loads((run / "run.json").read_text())["result"]
    scores = record["evaluation"]["validation"]
    assert scores["teacher"] == {"span_f1": 1.0, "accuracy": 1.0}
    assert scores["gold"]["span_f1"] > lookup_span_f1(entities.root.parents[1]) + 0.1
    assert scores["majority"]["span_f1"] == 0
    assert scores["by_label"].keys() == {"PER", "LOC", "ORG"}
    card = (run / "README.md").read_text()
    assert f"| validation | span_f1 | {scores['gold']['span_f1']:.4f} | " in card
    assert " | 1.0000 | 0.0000 |" in card
    assert "pipeline_tag: token-classification" in card
    told = evaluate(EvaluateSettings(run=run, store=entities.root.parent))
    assert json.loads(json.dumps(told)) == record["evaluation"]


def new_student(settings: TrainSettings, entities: TokenLabelSet) -> TokenLabelStudent:
    return TokenLabelStudent(build_token_label_config(settings, task_facts(entities))).eval()


@pytest.mark.parametrize("embedding", ["hybrid", "cmow", "cbow", "lstm"])
def test_a_sentence_is_read_alike_in_any_batch(embedding: str, entities: TokenLabelSet, tmp_path: Path) -> None:
    sizes = {"matrix_size": None, "vector_size": None, "lstm_size": 4 if embedding == "lstm" else None}
    noise = {} if embedding == "lstm" else {"initializer_range": 0.3}
    flags = tiny_config(entities.root, tmp_path, embedding=embedding, **sizes, **noise)
    torch.manual_seed(0)
    student = TokenLabelStudent(build_token_label_config(flags, task_facts(entities))).eval()
    ids = entities.read("validation").pieces.ids.take([4, 2, 9])
    with torch.inference_mode():
        together_TC = student(torch.from_numpy(ids.flat), torch.from_numpy(ids.offsets))
        alone = [student(torch.from_numpy(row), torch.tensor([0, len(row)])) for row in map(ids.__getitem__, range(3))]
    assert torch.cat(alone).numpy() == pytest.approx(together_TC.numpy(), abs=1e-4)
    assert together_TC.shape == (len(ids.flat), len(LABELS))


def test_with_gold_alone_the_teacher_says_nothing(entities: TokenLabelSet, tmp_path: Path) -> None:
    flags = tiny_config(entities.root, tmp_path, alpha=1.0)
    student = TokenLabelStudent(build_token_label_config(flags, task_facts(entities))).eval()
    whole = entities.read("train")
    gold = whole.gold.lists()
    rows = replace(whole, has_gold_N=np.arange(len(whole)) != 3, gold=Ragged.of([*gold[:3], [], *gold[4:]]))
    loss = TokenLabelTask(flags, student, {"train": rows}).loss([7, 3])
    starts = rows.pieces.ids.offsets
    places = np.concatenate([np.arange(starts[row], starts[row + 1]) for row in (7, 3)])
    ids, gold_T = rows.pieces.ids.take([7, 3]), torch.from_numpy(rows.gold_T[places])
    with torch.inference_mode():
        log_TC = torch.log_softmax(student(torch.from_numpy(ids.flat), torch.from_numpy(ids.offsets)).double(), dim=1)
    assert 0 < (gold_T < 0).sum() < len(gold_T)
    hard_T = -log_TC.gather(1, gold_T.clamp(min=0)[:, None])[:, 0]
    assert loss.item() == pytest.approx(float(hard_T[gold_T >= 0].sum()) / len(gold_T), rel=1e-5)
    none = replace(rows, has_gold_N=np.zeros(len(rows), dtype=bool), gold=Ragged.of([[]] * len(rows)))
    with pytest.raises(DataError, match="--alpha 1"):
        TokenLabelTask(flags, student, {"train": none})


def test_neighbours_are_those_of_the_sentence() -> None:
    alone_TF = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    left_TF, own_TF, right_TF = beside(alone_TF, torch.tensor([0, 0, 3, 3, 4]))
    assert left_TF.flatten().tolist() == [0, 1, 2, 0]
    assert own_TF is alone_TF
    assert right_TF.flatten().tolist() == [2, 3, 0, 0]
    assert [part.shape for part in beside(alone_TF[:0], torch.tensor([0, 0]))] == [(0, 1)] * 3


def test_the_loss_is_that_of_every_token(entities: TokenLabelSet, tmp_path: Path) -> None:
    flags = tiny_config(entities.root, tmp_path, alpha=0.3, temperature=2.0)
    student = TokenLabelStudent(build_token_label_config(flags, task_facts(entities))).eval()
    rows = entities.read("train")
    task = TokenLabelTask(flags, student, {"train": rows})
    loss = task.loss([7, 3])
    ids = rows.pieces.ids.take([7, 3])
    with torch.inference_mode():
        logits_TC = student(torch.from_numpy(ids.flat), torch.from_numpy(ids.offsets)).double()
    starts = rows.pieces.ids.offsets
    places = np.concatenate([np.arange(starts[row], starts[row + 1]) for row in (7, 3)])
    teacher_TC, gold_T = torch.from_numpy(rows.teacher_TC[places]).double(), torch.from_numpy(rows.gold_T[places])
    p_TC, q_TC = (torch.softmax(x / 2, dim=1) for x in (teacher_TC, logits_TC))
    soft_T = 4 * (p_TC * (p_TC.log() - q_TC.log())).sum(dim=1)
    hard_T = -torch.log_softmax(logits_TC, dim=1).gather(1, gold_T.clamp(min=0)[:, None])[:, 0]
    expected_T = torch.where(gold_T < 0, soft_T, 0.3 * hard_T + 0.7 * soft_T)
    assert loss.item() == pytest.approx(float(expected_T.mean()), rel=1e-4)


def test_sentences_without_tokens_are_in_no_batch(entities: TokenLabelSet, tmp_path: Path) -> None:
    flags = tiny_config(entities.root, tmp_path, per_device_train_batch_size=4)
    student = TokenLabelStudent(build_token_label_config(flags, task_facts(entities))).eval()
    rows = entities.read("train")
    ids, word_ids, gold = (
        Ragged(part.flat, np.concatenate([np.zeros(9, np.int64), part.offsets]))
        for part in (rows.pieces.ids, rows.pieces.word_ids, rows.gold)
    )
    counts, known = np.append([0] * 9, rows.num_words_N), np.append([True] * 9, rows.has_gold_N)
    more = replace(rows, pieces=Pieces(ids, word_ids), num_words_N=counts, gold=gold, has_gold_N=known)
    losses = []
    for part in (rows, more):
        task = TokenLabelTask(flags, student, {"train": part})
        steps = range(task.batches.steps_per_epoch)
        losses.append([task.loss(task.batches.at(k)).item() for k in steps])
    assert losses[0] == losses[1]
    none = Ragged.of([[], []])
    with pytest.raises(DataError, match=naming("train split", "token")):
        TokenLabelTask(flags, student, {"train": replace(rows, pieces=Pieces(none, none))})


def test_a_repeated_run_is_finished_and_another_is_refused(run: Path, entities: TokenLabelSet) -> None:
    same = {"vector_size": 20, "num_train_epochs": 8, "alpha": 0.0}
    before = (run / "model.safetensors").read_bytes()
    train(tiny_config(entities.root, run, **same), "again")
    assert (run / "model.safetensors").read_bytes() == before
    with pytest.raises(FingerprintMismatchError, match=naming("alpha: 0.0", "0.5")):
        train(tiny_config(entities.root, run, **same | {"alpha": 0.5}), "another")


def test_words_and_spans_stand_where_they_say(run: Path) -> None:
    predict = Predictor(run)
    of_text, of_words = predict([TEXT, ["Paris", "Hilton", "met", "london"]])
    assert [word["text"] for word in of_text["words"]] == [
        *("On", "Monday", ",", "Paris", "Hilton", "met", "london", "in", "Jordan", "!")
    ]
    for text, answer in ((TEXT, of_text), ("Paris Hilton met london", of_words)):
        for part in (*answer["words"], *answer["spans"]):
            assert text[part["start"] : part["end"]] == part["text"]
        found = spans([word["label"] for word in answer["words"]])
        assert [(span["text"].count(" "), span["label"]) for span in answer["spans"]] == [
            (span.stop - span.start - 1, span.name) for span in found
        ]
    assert of_words["spans"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("U.S.-based  don't.", ["U.S", ".", "-", "based", "don't", "."]),
        (
            "cafe\u0301 \u0939\u093f\u0928\u094d\u0926\u0940\u0964",
            ["cafe\u0301", "\u0939\u093f\u0928\u094d\u0926\u0940", "\u0964"],
        ),
        ("\u2764\ufe0f\u0301a", ["\u2764\ufe0f\u0301", "a"]),
    ],
)
def test_words_of_a_text(text: str, words: list[str]) -> None:
    assert WORD.findall(text) == words


def test_a_word_without_tokens_is_outside(run: Path) -> None:
    (answer,) = Predictor(run)([["\u200b"]])
    assert answer["words"] == [{"text": "\u200b", "start": 0, "end": 1, "label": "O", "probability": 1.0}]
    assert Predictor(run)([""]) == [{"words": [], "spans": []}]


@pytest.mark.parametrize("wrong", [None, 3, ["a", None]])
def test_what_is_neither_text_nor_words_is_told(run: Path, wrong: Any) -> None:
    with pytest.raises(DataError, match=naming("sentence 1", repr(wrong))):
        Predictor(run)(["a", wrong])


def test_predict_in_the_terminal_and_of_a_file(run: Path, tmp_path: Path) -> None:
    predicted = json.loads(invoke("predict", run, TEXT, "--json").stdout)
    shown = invoke("predict", run, TEXT)
    assert shown.exit_code == 0, shown.output
    assert all(span["text"] in shown.stdout for span in predicted[0]["spans"])
    words = [["Paris", "met", "london"], ["georgia"]]
    pq.write_table(pa.table({"tokens": words, "id": [7, 8]}), tmp_path / "in.parquet")
    file = ("--file", tmp_path / "in.parquet", "--output", tmp_path / "out.parquet", "--columns", "id")
    assert invoke("predict", run, *file).exit_code == 0
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    expected = Predictor(run)(words)
    assert [row["id"] for row in rows] == [7, 8]
    assert [row["words"] for row in rows] == words
    assert [row["spans"] for row in rows] == [answer["spans"] for answer in expected]
    assert [row["labels"] for row in rows] == [[word["label"] for word in answer["words"]] for answer in expected]
    assert "2 answers" in " ".join(invoke("predict", run, *file).stderr.split())
    (tmp_path / "in.jsonl").write_text('{"text": "Paris met london"}\n{"text": 3}\n')
    refused = invoke("predict", run, "--file", tmp_path / "in.jsonl")
    assert refused.exit_code == 2
    assert "text" in refused.stderr


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (("--embedding", "bert"), "--embedding"),
        (("--embedding", "biattentive"), "--embedding"),
        (("--head", "bilstm"), "--head bilstm: "),
        (("--head", "cnn"), "--head cnn: "),
        (("--head", "linear", "--hidden-size", "50"), "--hidden-size: "),
        (("--where", "true"), "--where: "),
        (("--class-weights", "balanced"), "--class-weights: "),
        (("--window-size", "4"), "--window-size: "),
        (("--metric-for-best-model", "f1"), "--metric-for-best-model f1: "),
    ],
)
def test_flags_that_are_not_for_words(
    entities: TokenLabelSet, flag: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    refused = invoke("train-student", "--set", entities.root, "--output-dir", tmp_path / "run", *flag)
    assert refused.exit_code == 2
    assert message in " ".join(refused.stderr.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("certify", "RUN", "--where", "true"),
        ("export", "RUN", "--html", "x.html"),
        ("predict", "RUN", "a text", "--explain"),
        ("predict", "RUN", "a text", "--abstain"),
    ],
)
def test_commands_about_whole_texts_refuse_it_by_name(run: Path, command: tuple[str, ...], tmp_path: Path) -> None:
    refused = invoke(*(str(run) if part == "RUN" else part for part in command))
    assert refused.exit_code == 2
    told = " ".join(refused.stderr.split())
    assert "words" in told


def test_sentences_held_out_choose_the_epoch(entities: TokenLabelSet, tmp_path: Path) -> None:
    flags = ("--held-out", "0.25", "--num-train-epochs", "1", "--vector-size", "4", "--matrix-size", "3")
    trained = invoke("train-student", "--logits", entities.root, "--output-dir", tmp_path / "run", *flags)
    assert trained.exit_code == 0, trained.output
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert list(record["result"]["best"]["metrics"]) == ["held-out", "validation"]
    assert record["settings"]["rows_held_out"] == 100
    rows = entities.read("train")
    train_rows, held_out = TokenLabelLesson().hold_out(
        rows,
        build_token_label_config(tiny_config(entities.root, tmp_path), task_facts(entities)),
        0.25,
    )
    assert (len(train_rows), len(held_out)) == (300, 100)
    together = sorted(map(tuple, [*train_rows.pieces.ids.lists(), *held_out.pieces.ids.lists()]))
    assert together == sorted(map(tuple, rows.pieces.ids.lists()))
    assert len(held_out.teacher_TC) == len(held_out.pieces.ids.flat)
    tallies = held_out.tallies(held_out.teacher_TC)  # of a teacher that is always right
    assert word_scores(("span_f1", "accuracy"), tallies) == {"span_f1": 1.0, "accuracy": 1.0}


def test_a_label_that_is_dear_is_predicted_more_often(run: Path) -> None:
    dear = json.loads(invoke("predict", run, TEXT, "--cost", "B-ORG=1e9", "--json").stdout)
    assert {word["label"] for word in dear[0]["words"]} == {"B-ORG"}
    assert {word["label"] for word in Predictor(run)([TEXT])[0]["words"]} > {"O"}


def test_lines_are_answered_as_they_arrive(run: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"id": 7, "tokens": ["Paris", "met", "london"]},
        {"id": 8, "tokens": "georgia met me"},
    ]
    told = piped(run, list(map(json.dumps, lines)), "--columns", "id")
    assert told.exit_code == 0, told.output
    answers = [json.loads(line) for line in told.stdout.splitlines()]
    expected = Predictor(run)([line["tokens"] for line in lines])
    assert [answer["id"] for answer in answers] == [7, 8]
    assert [answer["labels"] for answer in answers] == [[word["label"] for word in one["words"]] for one in expected]
    assert [answer["spans"] for answer in answers] == [one["spans"] for one in expected]
    refused = piped(run, ['{"tokens": 3}'])
    assert refused.exit_code == 2
    assert "line 1" in refused.stderr


def test_labels_and_spans_in_sql(run: Path, entities: TokenLabelSet) -> None:
    query = f"select words, predict('{run}', words) as labels, spans('{run}', words) as spans from \"right\" limit 5"
    told = invoke("sql", query, "--store", entities.root.parent, "--json")
    assert told.exit_code == 0, told.output
    rows = json.loads(told.stdout)
    expected = Predictor(run)([row["words"] for row in rows])
    assert len(rows) == 5
    assert [row["labels"].split(" ") for row in rows] == [[w["label"] for w in one["words"]] for one in expected]
    assert [row["spans"] for row in rows] == [one["spans"] for one in expected]
    of_text = invoke("sql", f"select predict('{run}', '{TEXT}') as labels", "--store", entities.root.parent, "--json")
    assert json.loads(of_text.stdout)[0]["labels"].split(" ") == [
        w["label"] for w in Predictor(run)([TEXT])[0]["words"]
    ]
    refused = invoke("sql", f"select scores('{run}', 'a text')", "--store", entities.root.parent)
    assert refused.exit_code == 2
    assert "spans(run, text)" in " ".join(refused.stderr.split())


@pytest.mark.parametrize("embedding", ["hybrid", "cmow", "cbow", "lstm"])
def test_an_onnx_file_says_what_torch_says(embedding: str, entities: TokenLabelSet, tmp_path: Path) -> None:
    sizes = {"matrix_size": None, "vector_size": None, "lstm_size": 4 if embedding == "lstm" else None}
    noise = {} if embedding == "lstm" else {"initializer_range": 0.3}
    flags = tiny_config(entities.root, tmp_path / "run", embedding=embedding, num_train_epochs=1, **sizes, **noise)
    train(flags, "distill train-student")
    path = tmp_path / "student.onnx"
    told = invoke("export", tmp_path / "run", "--onnx", path, "--store", entities.root.parent)
    assert told.exit_code == 0, told.output
    student = TokenLabelStudent.load(tmp_path / "run")
    ids = entities.read("validation").pieces.ids
    sentences = [ids[k] for k in range(6)]
    padded = np.full((6, max(map(len, sentences))), student.config.pad_id)
    for row, sentence in enumerate(sentences):
        padded[row, : len(sentence)] = sentence
    (logits_BLC,) = onnxruntime.InferenceSession(path).run(None, {"ids1": padded})
    for logits_LC, sentence in zip(logits_BLC, sentences, strict=True):
        with torch.inference_mode():
            expected_LC = student(torch.from_numpy(sentence), torch.tensor([0, len(sentence)]))
        np.testing.assert_allclose(logits_LC[: len(sentence)], expected_LC.numpy(), atol=2e-4)


def test_small_tables_are_measured(run: Path, entities: TokenLabelSet, tmp_path: Path) -> None:
    small = ("--tables", "int8", "--output-dir", tmp_path / "small", "--store", entities.root.parent, "--json")
    told = invoke("export", run, *small)
    assert told.exit_code == 0, told.output
    result = json.loads(told.stdout)
    assert result["bytes"]["after"] < result["bytes"]["before"]
    scores = result["scores"]["validation"]["span_f1"]
    assert scores["after"] == pytest.approx(scores["before"], abs=0.05)
    assert Predictor(tmp_path / "small")([TEXT])[0]["words"]


def test_the_page_of_a_run(run: Path, entities: TokenLabelSet, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    told = invoke("report", run, "--store", entities.root.parent, "--output", page)
    assert told.exit_code == 0, told.output
    text = page.read_text()
    scores = json.loads((run / "run.json").read_text())["result"]["evaluation"]["validation"]
    assert f"{scores['gold']['span_f1']:.4f}" in text
    for part in ("Student against teacher", "Student and teacher together", "B-PER"):
        assert part in text


def test_a_sweep_and_several_tasks(entities: TokenLabelSet, tmp_path: Path) -> None:
    small = ("--store", entities.root.parent, "--num-train-epochs", "1", "--matrix-size", "3", "--vector-size", "4")
    grid = ("--grid", "alpha=0,1", "--seeds", "2", "--output-dir", tmp_path / "sweep")
    told = invoke("sweep", "--set", entities.root, *grid, *small, "--json")
    assert told.exit_code == 0, told.output
    result = json.loads(told.stdout)
    assert result["metric"] == "validation span_f1"
    assert [len(point["scores"]) for point in result["points"]] == [2, 2]
    told = invoke("train-student", "--tasks", "right,entities", *small, "--output-dir", tmp_path / "both", "--json")
    assert told.exit_code == 0, told.output
    folders = [tmp_path / "both" / name for name in ("right", "entities")]
    first, second = (TokenLabelStudent.load(folder) for folder in folders)
    for name, tensor in first.encoder.state_dict().items():
        assert torch.equal(tensor, second.encoder.state_dict()[name])
    heads = first.head.state_dict(), second.head.state_dict()
    assert torch.equal(*(head["0.weight"] for head in heads))  # the hidden layer
    assert not torch.equal(*(head["3.weight"] for head in heads))
    evaluation = json.loads(invoke("evaluate", tmp_path / "both", "--store", entities.root.parent, "--json").stdout)
    assert evaluation.keys() == {"right/validation", "entities/validation"}
    both = MultiTaskPredictor(tmp_path / "both")
    alone = {name: Predictor(tmp_path / "both", task=name)([TEXT])[0] for name in ("right", "entities")}
    assert both([TEXT]) == [alone]
    assert both.columns([TEXT])["right"].field("labels").to_pylist() == [[w["label"] for w in alone["right"]["words"]]]
    told = invoke("predict", tmp_path / "both", TEXT, "--json")
    assert json.loads(told.stdout)[0].keys() == {"right", "entities"}


def test_what_it_is_made_of(run: Path) -> None:
    told = invoke("describe", run, "--json")
    assert told.exit_code == 0, told.output
    made = json.loads(told.stdout)
    student = TokenLabelStudent.load(run)
    assert made["parameters"]["total"] == sum(p.numel() for p in student.parameters())
    head = sum(p.numel() for p in student.head.parameters() if p.ndim == 2)
    assert made["multiply_adds"] == {"per_token": 2 * 3**3 + head, "per_input": 0}


def test_a_mistake_may_cost_more(run: Path, entities: TokenLabelSet) -> None:
    flags = ("--store", entities.root.parent, "--json")
    recalls = []
    for cost in ((), ("--cost", "O=1000")):
        told = invoke("evaluate", run, *flags, *cost)
        assert told.exit_code == 0, told.output
        recalls.append(json.loads(told.stdout)["validation"])
    assert recalls[0]["decided"] == {}
    assert recalls[1]["decided"]["span_f1"] == 0.0  # every word is outside
    assert recalls[1]["gold"] == recalls[0]["gold"]


def test_a_run_chooses_the_same_rows_today(run: Path) -> None:
    told = invoke("verify", run, "--json")
    assert told.exit_code == 0, told.output
    compared = json.loads(told.stdout)["compared"]
    assert compared["rows"] == {"then": 400, "now": 400}
    assert compared.keys() >= {"rows_sha256", "logits_sha256"}


def test_vectors_start_from_those_of_words_in_a_file(entities: TokenLabelSet, tmp_path: Path) -> None:
    (tmp_path / "vectors.txt").write_text("met 1.0 0.0\nin 0.0 1.0\n")
    flags = ("--init", tmp_path / "vectors.txt", "--embedding", "cbow", "--vector-size", "2", "--alpha", "0")
    still = ("--learning-rate", "1e-12", "--num-train-epochs", "1", "--output-dir", tmp_path / "run")
    trained = invoke("train-student", "--logits", entities.root, *flags, *still)
    assert trained.exit_code == 0, trained.output
    (table,) = TokenLabelStudent.load(tmp_path / "run").encoder.tables()
    ids = Tokenizer.from_str(entities.tokenizer_json()).get_vocab()
    met, within = table.weight[ids["met"]], table.weight[ids["in"]]
    assert met[0] > 100 * abs(met[1])
    assert within[1] > 100 * abs(within[0])


def test_a_student_starts_from_another(run: Path, entities: TokenLabelSet, tmp_path: Path) -> None:
    still = {"vector_size": 20, "init": run, "learning_rate": 1e-12, "early_stopping_patience": 1}
    record = train(tiny_config(entities.root, tmp_path, num_train_epochs=None, **still), "distill train-student")
    assert record["settings"]["num_train_epochs"] == 20
    there, here = (TokenLabelStudent.load(folder).encoder.tables()[0].weight for folder in (run, tmp_path))
    assert torch.allclose(there, here, atol=1e-9)


def test_its_predictor_travels(run: Path) -> None:
    predictor = Predictor(run)
    texts = ["anna paid ben .", "", ["ben", "smiled"]]
    for other in (copy.deepcopy(predictor), pickle.loads(pickle.dumps(predictor))):  # noqa: S301
        assert other(iter(texts)) == predictor(texts)


def test_a_file_of_labelled_words_has_the_scores_of_the_split_with_its_rows(folder: Path, run: Path) -> None:
    expected = evaluate(EvaluateSettings.from_flags(run=run))["validation"]
    (parts,) = evaluate_file(EvaluateSettings.from_flags(run=run, data=folder / "validation.jsonl"))[0].values()
    assert parts == expected | {"teacher": {}, "teacher_by_label": {}, "fidelity": {}}
    rows = [json.loads(line) for line in (folder / "validation.jsonl").read_text().splitlines()]
    for name in LABELS:
        assert sum(parts["confusion"].get(name, {}).values()) == sum(row["tags"].count(name) for row in rows)


def test_sentences_of_a_file_that_were_trained_on_are_counted(folder: Path, run: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()[:3]]
    rows[1]["tokens"] = [word.upper() for word in rows[1]["tokens"]]
    rows.append({"tokens": ["a", "new", "sentence"], "tags": ["O"] * 3})
    (tmp_path / "june.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = invoke("evaluate", run, "--data", tmp_path / "june.jsonl", "--json")
    (parts,) = json.loads(done.stdout).values()
    assert any(line.startswith("3 of 4 rows") for line in parts["judgements"])

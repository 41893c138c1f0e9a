"""The engine against torch and `tokenizers`: the same ids, the same representations, the same answers."""

import copy
import ctypes
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from pipeline.arrays import Floats, Ragged
from pipeline.errors import ConfigError
from pipeline.tasks.target import predicted_scores, probabilities
from pipeline.tasks.temperature import calibrated
from student.data import in_batches
from student.export.engine_file import write_engine_file
from student.export.export import export, with_small_tables
from student.model.architecture import sequences
from student.model.disk_rounding import rounded as rounded_for_disk
from student.model.disk_rounding import widened
from student.model.student import TaskStudent, TokenLabelStudent
from student.run_settings import ExportSettings
from tests.helpers.engine import (
    ALIGNED,
    DTYPES,
    LIBRARY,
    PAIR,
    RECURRENT,
    ROWS,
    SHAPE,
    STUDENTS,
    by_torch,
    finite,
    folder_by_torch,
    inputs,
    made,
    needs_engine,
    rounded,
    torch_predictor,
    write,
)
from tests.helpers.messages import naming
from tests.helpers.tokenizers import VARIANTS, expected, texts
from tests.helpers.toy_students import lstm_student, student, word_student

pytestmark = needs_engine
if LIBRARY.exists():
    from student.engine.python.distill_student import (
        DistillError,
        MultiTaskPredictor,
        Predictor,
        _library,
        _logits,
        _sentences,
    )

OK, WRONG_ARGUMENT = 0, 2  # of `distill_status`
LEVELS = ("portable", "avx2", "avx512", "avx512bf16")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(STUDENTS)), rows=st.lists(st.tuples(texts, texts), min_size=1, max_size=4))
def test_the_logits_are_those_of_torch(files: dict[str, Path], name: str, rows: list[tuple[str, str]]) -> None:
    actual_NC = Predictor(files[name]).logits(*inputs(name, rows))
    np.testing.assert_allclose(actual_NC, by_torch(name, rows), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("changes", [RECURRENT, {"matrix_size": 0, "pooling": "sum+max"}, {**PAIR, **ALIGNED}])
def test_long_texts_have_the_logits_of_torch(tmp_path: Path, changes: dict[str, Any]) -> None:
    """They are read in pieces, and their maxima from each token once."""
    one, tokenizer = student(**SHAPE | changes | {"max_seq_length": 100}), VARIANTS["uncased"]()
    write(one, tokenizer, tmp_path, tmp_path / "long.distill")
    first = ["ab " + "a b the " * 30, "there " * 17, "a b ab the there é " * 9]
    second = first[::-1] if one.config.is_pair else None
    parts = sequences(one.config, *map(Ragged.of, expected(tokenizer, first, second, 100)))
    logits_NC = in_batches(one.logits, parts, one.config.target.num_logits, torch.device("cpu"))
    actual_NC = Predictor(tmp_path / "long.distill").logits(first, second)
    np.testing.assert_allclose(actual_NC, logits_NC, rtol=1e-4, atol=1e-4)


@settings(max_examples=300, deadline=None)
@given(text=texts, name=st.sampled_from(sorted({variant for variant, _ in STUDENTS.values()})))
def test_the_ids_are_those_of_the_library(files_by_variant: dict[str, Any], text: str, name: str) -> None:
    tokenizer = VARIANTS[name]()
    assert files_by_variant[name].tokenize(text) == tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def files_by_variant(files: dict[str, Path]) -> dict[str, Any]:
    return {STUDENTS[name][0]: Predictor(path) for name, path in files.items()}


@pytest.mark.parametrize("name", STUDENTS)
def test_arrays_have_what_predict_returns(files: dict[str, Path], name: str) -> None:
    predictor, rows = Predictor(files[name]), inputs(name, ROWS[:5])
    answers, arrays = predictor.predict(*rows), predictor.predict_arrays(*rows)
    if predictor.labels_words:
        answers = [word for sentence in answers for word in sentence]
    if "score" in arrays:
        assert arrays["score"].tolist() == [answer["score"] for answer in answers]
        return
    assert arrays["probabilities"].tolist() == [list(answer["probabilities"].values()) for answer in answers]
    labels = predictor.labels
    found = [
        [labels[k] for k in np.flatnonzero(label)] if isinstance(label, list) else labels[label]
        for label in arrays["label"].tolist()
    ]
    assert found == [answer["label"] for answer in answers]
    none = predictor.predict_arrays([])
    assert {name: len(array) for name, array in none.items()} == {"label": 0, "probabilities": 0}


@pytest.mark.parametrize("name", STUDENTS)
def test_answers_and_representations(files: dict[str, Path], name: str) -> None:
    one, tokenizer = made(name)
    predictor, target = Predictor(files[name], threads=3), one.config.target
    logits_NC = by_torch(name, ROWS)
    answers = predictor.predict(*inputs(name, ROWS))
    if predictor.labels_words:
        assert [*map(len, answers)] == [*map(len, inputs(name, ROWS)[0])]
        answers = [word for sentence in answers for word in sentence]
    assert predictor.is_pair == one.config.is_pair
    assert predictor.predict([]) == []
    if not target.has_labels:
        scores_N = [answer["score"] for answer in answers]
        np.testing.assert_allclose(scores_N, predicted_scores(target, logits_NC), rtol=1e-4, atol=1e-4)
    else:
        p_NC = [list(answer["probabilities"].values()) for answer in answers]
        scaled_NC = calibrated(logits_NC, one.config.calibration)
        np.testing.assert_allclose(p_NC, probabilities(target, scaled_NC), rtol=1e-4, atol=1e-5)
        best = [[n for n, k in zip(target.names, row > 0, strict=True) if k] for row in logits_NC]
        classes = [target.names[k] for k in logits_NC.argmax(axis=1)]
        assert [answer["label"] for answer in answers] == (best if target.kind == "labels" else classes)
    first = [a for a, _ in ROWS]
    parts = sequences(one.config, Ragged.of(expected(tokenizer, first, None, 14)[0]))
    features_NF = in_batches(one.encoder.reduce, parts, one.encoder.size, torch.device("cpu"))
    # Large products cancel: what is left is as exact as the largest numbers that went into it.
    np.testing.assert_allclose(predictor.encode(first), features_NF, rtol=1e-4, atol=1e-4 * np.abs(features_NF).max())


# The levels that round a head's inputs, too: all of them to 8 bits, one to bfloat16.
ROUNDING = {level: {"int8"} for level in LEVELS} | {"avx512bf16": {"bfloat16", "int8"}}
PROGRAM = """
import json, sys; import numpy as np
from student.engine.python.distill_student import Predictor, _library
assert _library.distill_level().decode() == sys.argv[1], _library.distill_level()
for number in range(int(sys.argv[2])):
    inputs = json.load(open(f"{number}.json"))
    np.save(f"{number}.npy", Predictor(f"{number}.distill").logits(*inputs))
"""


@pytest.fixture(scope="module")
def of_all_dtypes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, str, float, Any]]]:
    """A folder of numbered files, and of each the student, its head's dtype, its tolerance and what torch answers."""
    folder = tmp_path_factory.mktemp("dtypes")
    jobs: list[tuple[str, str, float, Any]] = []
    for name in STUDENTS:
        for dtypes, tolerance in DTYPES:
            path = folder / f"{len(jobs)}.distill"
            write(*made(name), folder, path, **dtypes)
            (folder / f"{len(jobs)}.json").write_text(json.dumps(inputs(name, ROWS)))
            jobs.append(
                (name, dtypes.get("head_dtype", "float32"), tolerance, by_torch(name, ROWS, rounded(name, path)))
            )
    return folder, jobs


def by_level(folder: Path, level: str, count: int) -> list[Floats]:
    """The finite logits of a level for so many files of a folder. It is chosen once in each process."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    wanted = {"portable": "", "avx2": "avx2", "avx512": "avx512vl", "avx512bf16": "avx512_bf16"}[level]
    if wanted not in flags:
        pytest.skip(f"this processor has no {level}")
    environment = os.environ | {"DISTILL_LEVEL": level, "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", PROGRAM, level, str(count)], check=True, env=environment, cwd=folder)
    return [finite(np.load(folder / f"{number}.npy")) for number in range(count)]


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_of_instructions(of_all_dtypes: tuple[Path, list[tuple[str, str, float, Any]]], level: str) -> None:
    folder, jobs = of_all_dtypes
    found = zip(by_level(folder, level, len(jobs)), jobs, strict=True)
    for number, (actual_NC, (name, head_dtype, tolerance, expected_NC)) in enumerate(found):
        worst = np.abs(actual_NC - finite(expected_NC)).max()
        allowed = 1e-4 + (tolerance if head_dtype in ROUNDING[level] else 0)
        assert worst <= allowed * max(1.0, float(np.ptp(finite(expected_NC)))), (name, number, worst)


@pytest.mark.parametrize("level", LEVELS[1:])
def test_heads_of_int8_make_the_same_sums_on_all_levels(
    of_all_dtypes: tuple[Path, list[tuple[str, str, float, Any]]], level: str
) -> None:
    """A tenth of what rounding the inputs to 8 bits changes: features may differ in their last digits."""
    folder, jobs = of_all_dtypes
    portable, other = by_level(folder, "portable", len(jobs)), by_level(folder, level, len(jobs))
    for (name, head_dtype, tolerance, _), first_NC, second_NC in zip(jobs, portable, other, strict=True):
        if head_dtype == "int8":
            assert np.abs(first_NC - second_NC).max() <= tolerance / 10 * np.ptp(first_NC), name


def test_small_tables_of_a_run_are_written(tmp_path: Path) -> None:
    one, tokenizer = made("hybrid")
    small = with_small_tables(one, "int8")
    write(small, tokenizer, tmp_path, tmp_path / "x.distill")
    first = [a for a, _ in ROWS]
    ids = Ragged.of(expected(tokenizer, first, None, 14)[0])
    logits_NC = in_batches(small.logits, sequences(small.config, ids), 3, torch.device("cpu"))
    np.testing.assert_allclose(Predictor(tmp_path / "x.distill").logits(first), logits_NC, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "name", ["hybrid", "hybrid, maxima, bigrams, linear", "compare, maxima, bigrams", "aligned", "recurrent", "words"]
)
def test_weights_that_were_rounded_for_the_disk_are_int8_and_the_same(tmp_path: Path, name: str) -> None:
    (whole, tokenizer), rows = made(name), inputs(name, ROWS)
    one = copy.deepcopy(whole)
    one.load_state_dict(widened(rounded_for_disk(one.state_dict()), 10**6))
    for path, dtypes in ((tmp_path / "default", {}), (tmp_path / "float32", {"table_dtype": "float32"})):
        write(one, tokenizer, tmp_path, path, **dtypes)
        np.testing.assert_allclose(Predictor(path).logits(*rows), by_torch(name, ROWS, one), rtol=1e-5, atol=1e-5)
        with safe_open(path, framework="np") as file:
            tables = {name: file.get_tensor(name).dtype for name in ("rows", "bigrams") if name in file.keys()}  # noqa: SIM118
        assert set(tables.values()) == {np.dtype(np.float32 if dtypes else np.int8)}


@pytest.mark.parametrize("dtypes", [dtypes for dtypes, _ in DTYPES], ids=str)
def test_tokens_without_matrices_have_vectors_alone(tmp_path: Path, dtypes: dict[str, Any]) -> None:
    (one, tokenizer), num_tokens = made("hybrid"), SHAPE["vocabulary_size"]
    write(one, tokenizer, tmp_path, tmp_path / "x", **dtypes)
    with safe_open(tmp_path / "x", framework="pt") as file:  # numpy has no bfloat16
        row_V, rows, vectors = (file.get_tensor(name) for name in ("row_of_token", "rows", "vectors"))
    own_V = row_V != row_V[one.config.pad_id]
    has_vector_alone_V = own_V & (row_V >= len(rows))
    assert has_vector_alone_V.tolist() == [own and token % 5 == 2 for token, own in enumerate(own_V)]
    assert num_tokens / 8 < len(vectors) < num_tokens / 5
    widths = one.config.vector_size, one.config.vector_size + 2 * one.config.matrix_size**2
    assert (vectors.shape[1], rows.shape[1]) == widths


def test_the_content_of_a_file_is_a_student_too(files: dict[str, Path]) -> None:
    texts = inputs("hybrid", ROWS)
    predictor = Predictor(files["hybrid"].read_bytes())
    np.testing.assert_array_equal(predictor.logits(*texts), Predictor(files["hybrid"]).logits(*texts))
    with pytest.raises(DistillError, match=naming("'other'", predictor.task)):
        Predictor(files["hybrid"].read_bytes(), task="other")
    with pytest.raises(DistillError):
        Predictor(files["hybrid"].read_bytes()[:1000])


@pytest.fixture(scope="module")
def several(together: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Students of two tasks of texts and one of pairs, with one encoder."""
    path = tmp_path_factory.mktemp("several") / "together.distill"
    size = export(ExportSettings(run=together, file=path))["bytes"]
    assert size["after"] == path.stat().st_size
    return path


@pytest.mark.parametrize("count", [0, 1, 100])
def test_several_tasks_answer_as_each_alone(several: Path, together: Path, count: int) -> None:
    first, second = [a for a, _ in ROWS * 2][:count], [b for _, b in ROWS * 2][:count]
    predictor = MultiTaskPredictor(several, threads=2)
    for tasks, given_ in ((["opinion", "score"], (first,)), (["roles"], (first, second))):
        answers, logits = predictor.predict(*given_), predictor.logits(*given_)
        assert list(logits) == tasks
        for task in tasks:
            alone = Predictor(several, task=task)
            np.testing.assert_array_equal(logits[task], alone.logits(*given_))
            assert [answer[task] for answer in answers] == alone.predict(*given_)
            expected_NC = folder_by_torch(torch_predictor(together / task), *given_)
            np.testing.assert_allclose(logits[task], expected_NC, rtol=1e-4, atol=1e-4)
    turned = MultiTaskPredictor(several, tasks=["score", "opinion"]).logits(first)
    assert list(turned) == ["score", "opinion"]
    np.testing.assert_array_equal(turned["opinion"], predictor.logits(first)["opinion"])


@pytest.mark.parametrize(("dtypes", "_"), DTYPES)
def test_heads_with_and_without_a_hidden_layer_share_an_encoder(
    tmp_path: Path, dtypes: dict[str, Any], _: float
) -> None:
    (hidden, tokenizer), linear = made("hybrid"), student(head="linear", **SHAPE)
    linear.encoder = hidden.encoder
    other = copy.deepcopy(hidden)
    torch.nn.init.normal_(next(other.head.parameters()))  # the weights of its hidden layer
    tasks = {"one": linear, "two": hidden, "three": copy.deepcopy(linear), "four": copy.deepcopy(hidden), "five": other}
    write_engine_file({task: (one, tmp_path) for task, one in tasks.items()}, tokenizer, tmp_path / "x", **dtypes)
    first = [a for a, _ in ROWS]
    logits = MultiTaskPredictor(tmp_path / "x").logits(first)
    for task, one in tasks.items():
        write(one, tokenizer, tmp_path, tmp_path / task, **dtypes)
        np.testing.assert_array_equal(logits[task], Predictor(tmp_path / task).logits(first))


def test_texts_and_words_share_an_encoder(tmp_path: Path) -> None:
    (texts, tokenizer), words = made("hybrid"), made("words")[0]
    words = TokenLabelStudent(words.config, texts.encoder).eval()
    write_engine_file({"texts": (texts, tmp_path), "words": (words, tmp_path)}, tokenizer, tmp_path / "x")
    predictor, sentences = MultiTaskPredictor(tmp_path / "x"), inputs("words", ROWS)[0]
    first = [a for a, _ in ROWS]
    logits = predictor.logits(first)
    assert list(logits) == ["texts"]
    write(texts, tokenizer, tmp_path, tmp_path / "texts")
    np.testing.assert_array_equal(logits["texts"], Predictor(tmp_path / "texts").logits(first))
    expected_WC = by_torch("words", ROWS, words)
    np.testing.assert_allclose(predictor.predictors["words"].logits(sentences), expected_WC, rtol=1e-4, atol=1e-4)
    with pytest.raises(DistillError, match=naming("words", "texts")):
        _logits(list(predictor.predictors.values()), first, None)
    with pytest.raises(DistillError, match=naming("no task")):
        MultiTaskPredictor(tmp_path / "x", tasks=["words"]).predict(first)


def test_a_shared_hidden_layer_is_in_the_file_once(several: Path) -> None:
    with safe_open(several, framework="np") as file:
        hidden = [name for name in file.keys() if name.endswith(".hidden")]  # noqa: SIM118
        tasks = json.loads(file.metadata()["distill_student"])["tasks"]
    assert {one["task"]: one["hidden_of"] for one in tasks} == {"opinion": 0, "roles": 1, "score": 0}
    assert sorted(hidden) == ["0.hidden", "1.hidden"]


def test_tasks_of_a_file_are_named(several: Path, together: Path, tmp_path: Path) -> None:
    with pytest.raises(DistillError, match=naming("task=", "opinion", "roles")):
        Predictor(several)
    with pytest.raises(DistillError, match=naming("opinions", "opinion")):
        Predictor(several, task="opinions")
    with pytest.raises(DistillError, match=naming("two texts")):
        MultiTaskPredictor(several, tasks=["opinion"]).predict(["a"], ["b"])
    both = list(MultiTaskPredictor(several).predictors.values())
    with pytest.raises(DistillError, match=naming("some take one text")):
        _logits(both, ["a"], None)
    with pytest.raises(ConfigError, match=naming("--file", f"{together}/roles")):
        export(ExportSettings(run=together, onnx=tmp_path / "x.onnx"))


@pytest.mark.parametrize("name", ["compare, maxima, bigrams", "aligned", "recurrent", "words"])
def test_threads_share_a_student(files: dict[str, Path], name: str) -> None:
    predictor, given_ = Predictor(files[name], threads=4), inputs(name, ROWS * 20)
    expected_NC = np.tile(by_torch(name, ROWS), (20, 1))
    with ThreadPoolExecutor(4) as pool:
        for actual_NC in pool.map(lambda _: predictor.logits(*given_), range(12)):
            np.testing.assert_allclose(actual_NC, expected_NC, rtol=1e-4, atol=1e-4)


def test_sentences_are_of_all_words(files: dict[str, Path]) -> None:
    """What the Python package never passes, but C may."""
    words, texts, room = Predictor(files["words"]), Predictor(files["hybrid"]), (ctypes.c_float * 99)()
    assert _ask_words(words._file.handle, [0, 2, 3], room) == OK
    assert _ask_words(texts._file.handle, [0, 2, 3], room) == WRONG_ARGUMENT
    for starts in ([0, 2], [1, 3], [0, 4], [0, 3, 2, 3], [-1, 3], [0, 2**40]):
        assert _ask_words(words._file.handle, starts, room) == WRONG_ARGUMENT
    assert _library.distill_word_logits(words._file.handle, None, None, 1, ctypes.addressof(room)) == WRONG_ARGUMENT


def _ask_words(handle: Any, starts: list[int], room: Any) -> int:
    """The status of the library for three words that are those of sentences with such starts."""
    sentences = _sentences([["a", "b", "ab"]])
    numbers = (ctypes.c_int64 * len(starts))(*starts)
    sentences.starts, sentences.count = ctypes.addressof(numbers), len(starts) - 1
    status: int = _library.distill_word_logits(handle, None, ctypes.byref(sentences), 1, ctypes.addressof(room))
    return status


def test_a_file_may_be_overwritten_in_place_while_it_is_open(files: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "live.distill"
    for content in (b"x" * 100, files["diffcat, labels"].read_bytes()):
        path.write_bytes(files["hybrid"].read_bytes())
        predictor = Predictor(path)
        before = predictor.predict(["the there"])
        path.write_bytes(content)
        assert predictor.predict(["the there"]) == before


def test_a_program_may_end_with_an_open_file(files: dict[str, Path]) -> None:
    program = "import sys; from student.engine.python.distill_student import Predictor; kept = Predictor(sys.argv[1])"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", program, str(files["hybrid"])]
    assert not subprocess.run(command, check=True, env=environment, capture_output=True).stderr


def test_what_does_not_fit_is_one_message(files: dict[str, Path], tmp_path: Path) -> None:
    single, pair, words = (Predictor(files[name]) for name in ("hybrid", "diffcat, labels", "words"))
    for ask, message in (
        (lambda: single.logits(["a"], ["b"]), "one text"),
        (lambda: pair.logits(["a"]), "two texts"),
        (lambda: pair.logits(["a", "b"], ["b"]), "not as many"),
        (lambda: single.predict("a"), "a list"),
        (lambda: words.predict(["a b"]), "a list of words"),
        (lambda: words.predict("a b"), "a list of words"),
        (lambda: words.predict([["a", 3]]), "not text"),
        (lambda: words.predict([["a", "\ud800"]]), "not text"),
        (lambda: words.predict([["a"]], ["a"]), "second texts"),
        (lambda: single.predict([["a"]]), "not text"),
        (lambda: single.predict(["a\ud800"]), "not text"),
        (lambda: single.predict([3, "a"]), "not text"),
        (lambda: Predictor(tmp_path / "none"), "none: cannot be opened"),
        (lambda: Predictor(tmp_path), "not a file"),
    ):
        with pytest.raises(DistillError, match=naming(message)):
            ask()
    assert single.logits([]).shape == (0, 3)
    assert single.predict([]) == words.predict([]) == []
    assert words.predict([[], ["a"]])[0] == []


def test_other_students_are_told_which_export_serves_them(tmp_path: Path) -> None:
    tokenizer = VARIANTS["uncased"]()
    refused: list[tuple[TaskStudent, str]] = [
        (lstm_student(), "--onnx"),
        (student(head="cnn", matrix_size=4, vector_size=16), "--onnx"),
        (student(head="bilstm", hidden_size=4), "distill serve"),
    ]
    for one, other in refused:
        with pytest.raises(ConfigError, match=naming("--file", other)):
            write(one, tokenizer, tmp_path, tmp_path / "x.distill")
    for make, variant in ((student, "added normal"), (word_student, "added")):
        with pytest.raises(ConfigError, match=naming("--file", "--onnx")):
            write(make(), VARIANTS[variant](), tmp_path, tmp_path / "x.distill")
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_exported_by_the_command(roles_run: Path, store: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "roles.distill"
    result = export(ExportSettings(run=roles_run, store=store, file=path))
    assert result["bytes"]["after"] == path.stat().st_size
    reference, predictor = torch_predictor(roles_run), Predictor(path)
    assert predictor.task == reference.student.config.task
    sentences = ["the nurse was kind to the doctor", "", "A judge, a farmer!"]
    second = [sentences] if predictor.is_pair else []
    np.testing.assert_allclose(
        predictor.logits(sentences, *second), folder_by_torch(reference, sentences, *second), rtol=1e-4, atol=1e-4
    )
    with pytest.raises(ConfigError, match=naming("--file", "--tables")):
        export(ExportSettings(run=roles_run, store=store, file=path, tables="int8"))
    with pytest.raises(ConfigError, match=naming("--head-dtype")):
        export(ExportSettings(run=roles_run, store=store, head_dtype="int8", onnx=tmp_path / "x.onnx"))

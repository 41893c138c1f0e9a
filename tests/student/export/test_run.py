import hashlib
import json
import shutil
import sys
from pathlib import Path

import onnxruntime
import pytest
import torch
from typer.testing import CliRunner

from distill.commands import app
from pipeline.console import size
from pipeline.errors import ConfigError, DataError, FingerprintMismatchError, IntegrityError, MissingDependencyError
from pipeline.record_file import read_record
from student.describe import describe
from student.encoders.matrices import matrix_encoder
from student.evaluate import evaluate
from student.export.export import export, with_small_tables
from student.export.onnx_file import write_onnx
from student.kernels.reference import GROUP
from student.model.student import Student, num_bytes
from student.model.tables import SmallDtype
from student.predict.predictor import Predictor
from student.run_settings import EvaluateSettings, ExportSettings
from student.train import train
from tests.helpers.commands import invoke
from tests.helpers.messages import naming
from tests.helpers.onnx_files import run_onnx, session
from tests.helpers.students import tiny_config
from tests.helpers.toy_students import padded, pair_student, student

JOINT = {"is_pair": True, "pairing": "joint", "special_ids": ((1,), (2,), (2,))}
LSTM = {"embedding": "lstm", "lstm_size": 3}
PAIR_LSTM = {**LSTM, "embedding": "biattentive", "is_pair": True, "pairing": "attention", "head": "plain-mlp"}
SQUARE = {"head": "cnn", "matrix_size": 4, "vector_size": 16}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({"is_pair": False, "head": "linear", "max_seq_length": 11}, None),
        ({"is_pair": True, "max_seq_length": 20, "bidirectional": False}, "int8"),
        ({"is_pair": True, "pairing": "compare", "matrix_size": 0}, "float16"),
        ({"is_pair": False, "matrix_size": 0, "max_seq_length": 7}, None),
        ({**SQUARE, "pooling": "sum+max"}, "int8"),
        ({**JOINT, "head": "linear", "vector_size": 0, "bidirectional": False, "pad_id": 9}, "float16"),
        ({**LSTM, "channels": 2, "head": "linear", "max_seq_length": 5}, None),
        ({**PAIR_LSTM, "max_seq_length": 5}, None),
        ({"embedding": "recurrent", "head": "linear", "max_seq_length": 9}, None),
        ({"embedding": "aligned", "is_pair": True, "pairing": "attention"}, None),
    ],
    ids=str,
)
def test_the_file_says_what_torch_says(tmp_path: Path, changes: dict[str, object], dtype: SmallDtype | None) -> None:
    made = student(**changes).eval()
    made = with_small_tables(made, dtype) if dtype else made
    assert write_onnx(made, tmp_path / "x.onnx") < 1e-5
    longest, pad = made.config.max_seq_length, made.config.pad_id
    for batch_size, length in ((1, 1), (5, 4), (2, longest)):
        shapes = ((batch_size, length), (batch_size, max(1, length - 2)))[: made.config.num_sequences]
        ids = [torch.randint(made.config.vocabulary_size, shape) for shape in shapes]
        expected = made(*ids).detach()
        torch.testing.assert_close(run_onnx(tmp_path / "x.onnx", *ids), expected, rtol=1e-4, atol=1e-5)
        padded = [torch.nn.functional.pad(part, (0, longest - part.shape[1]), value=pad) for part in ids]
        torch.testing.assert_close(run_onnx(tmp_path / "x.onnx", *padded), expected, rtol=1e-4, atol=1e-5)
    check_texts_without_tokens(made, tmp_path / "x.onnx")
    if made.config.matrix_size and made.config.pairing != "joint":
        check_too_long_texts(made, tmp_path / "x.onnx")
    metadata = session(tmp_path / "x.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(metadata["distill"]) == json.loads(made.config.model_dump_json())


def check_texts_without_tokens(made: Student, path: Path) -> None:
    """Compares the file with torch on batches without a column, of padding alone, and with one such row."""
    pad = made.config.pad_id
    nothing, padding = torch.empty(2, 0, dtype=torch.int64), torch.full((2, 3), pad)
    one = torch.tensor([[pad, pad], [(pad + 1) % 10, (pad + 2) % 10]])
    for batch in ([nothing, nothing], [padding, padding], [one, one], [nothing, one], [one, nothing]):
        ids = batch[: made.config.num_sequences]
        torch.testing.assert_close(run_onnx(path, *ids), made(*ids).detach(), rtol=1e-4, atol=1e-5)


def check_too_long_texts(made: Student, path: Path) -> None:
    """An input is read whole up to the end of the last group of matrices, and a longer one is refused and not cut."""
    longest, count = made.config.max_seq_length, made.config.num_sequences
    most = -(-longest // GROUP) * GROUP
    for length in range(longest + 1, most + 1):
        ids = [torch.randint(1, 10, (2, size)) for size in (length, 3)[:count]]
        for batch in (ids, ids[::-1]):
            torch.testing.assert_close(run_onnx(path, *batch), made(*batch).detach(), rtol=1e-4, atol=1e-5)
    for lengths in ((most + 1, 3), (3, most + 1), (40, 40)) if count > 1 else ((most + 1,), (40,)):
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            run_onnx(path, *(torch.ones(2, length, dtype=torch.int64) for length in lengths))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "dtype"), [({"is_pair": True, "matrix_size": 0}, None), ({"is_pair": False}, "int8")], ids=str
)
def test_the_file_says_what_torch_says_of_pairs_of_tokens(
    tmp_path: Path, changes: dict[str, object], dtype: SmallDtype | None
) -> None:
    made = pair_student(**changes, max_seq_length=12)
    made = with_small_tables(made, dtype) if dtype else made
    assert write_onnx(made, tmp_path / "x.onnx") < 1e-5
    sentences = [[1, 2, 2, 6, 3], [4], [2, 6, 3, 1, 2, 1], [6, 2]]
    ids = [padded(sentences), padded(sentences[::-1])][: made.config.num_sequences]
    torch.testing.assert_close(run_onnx(tmp_path / "x.onnx", *ids), made(*ids).detach(), rtol=1e-4, atol=1e-5)
    check_texts_without_tokens(made, tmp_path / "x.onnx")


@pytest.mark.slow
def test_a_file_that_says_something_else_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = onnxruntime.InferenceSession.run
    monkeypatch.setattr(onnxruntime.InferenceSession, "run", lambda *args: [run(*args)[0] + 0.1])
    with pytest.raises(IntegrityError, match=naming("--onnx: ", "0.1", "1 inputs of 1 tokens")):
        write_onnx(student(is_pair=False, matrix_size=0).eval(), tmp_path / "x.onnx")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported_is_told_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=naming("--onnx: ", "bilstm")):
        write_onnx(student(head="bilstm", hidden_size=4).eval(), tmp_path / "x.onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingDependencyError, match=naming("--onnx", "onnxscript", "'distill-offline[onnx]'")):
        write_onnx(student().eval(), tmp_path / "x.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_smaller_folder_is_a_student_like_any_other(roles_run: Path, store: Path, tmp_path: Path) -> None:
    config = ExportSettings(run=roles_run, output_dir=tmp_path / "small", tables="int8", store=store)
    result = export(config)
    whole, small = Student.load(roles_run), Student.load(tmp_path / "small")
    assert result["bytes"] == {"before": num_bytes(whole), "after": num_bytes(small)}
    assert result["bytes"]["after"] < result["bytes"]["before"]
    evaluation = evaluate(EvaluateSettings(run=tmp_path / "small", store=store))
    record = read_record(tmp_path / "small" / "run.json")
    assert record["result"]["evaluation"] == evaluation
    before = evaluate(EvaluateSettings(run=roles_run, store=store))
    accuracy = {
        "before": before["validation"]["gold"]["accuracy"],
        "after": evaluation["validation"]["gold"]["accuracy"],
        "after_interval": evaluation["validation"]["interval"]["accuracy"],
        "rows": evaluation["validation"]["rows"]["scored"],
    }
    assert result["scores"] == {"validation": {"accuracy": accuracy}}
    assert Predictor(tmp_path / "small")(["anna paid ben ."], ["ben paid anna ."])[0]["label"]
    assert describe(str(tmp_path / "small"))["architecture"]["tables"] == "int8 tables"
    assert "int8 tables" in (tmp_path / "small" / "README.md").read_text()
    assert export(config) == result  # again


def test_rows_of_untrained_tokens_are_left_out(store: Path, tmp_path: Path) -> None:
    train(tiny_config(store / "opinion", tmp_path / "run", where="source_row < 3"), "")
    result = export(ExportSettings(run=tmp_path / "run", output_dir=tmp_path / "small", tables="int8", store=store))
    whole, small = Student.load(tmp_path / "run"), Student.load(tmp_path / "small")
    rows = small.config.used_rows
    assert rows is not None
    assert rows == whole.config.used_rows
    assert rows < whole.config.num_tokens / 2
    of_pairs = small.config.encoder.model_dump()["num_bigrams"] * (32 + 4 + 2 * 4)  # numbers, a scale, two tokens
    assert result["bytes"]["after"] == num_bytes(whole.head) + rows * (5 + 9 + 9) + 3 * 4 * rows + 4 * rows + of_pairs
    untrained = sorted(set(range(whole.config.vocabulary_size)) - set(whole.encoder.used_ids().tolist()))
    nothing, unknown = (small(torch.tensor([ids])) for ids in ([small.config.pad_id], untrained[:3]))
    assert torch.equal(unknown, nothing)
    assert f"{rows} of {whole.config.num_tokens} tokens known" in (tmp_path / "small" / "README.md").read_text()


@pytest.mark.slow
def test_a_file_leaves_them_out_too(store: Path, tmp_path: Path) -> None:
    vocabulary = 100_000
    made = student(is_pair=False, vocabulary_size=vocabulary, matrix_size=0, vector_size=16).eval()
    all_rows = with_small_tables(made, "int8")
    made.encoder.neutralise(torch.arange(vocabulary) > 20)
    few_rows = with_small_tables(made, "int8")
    assert few_rows.config.used_rows == 21
    assert write_onnx(few_rows, tmp_path / "x.onnx") < 1e-5
    assert (tmp_path / "x.onnx").stat().st_size < num_bytes(all_rows) - 8 * vocabulary  # the rows, less an index
    ids = torch.tensor([[3, vocabulary - 1, 20, 21, 4]])
    torch.testing.assert_close(run_onnx(tmp_path / "x.onnx", ids), made(ids).detach(), rtol=1e-2, atol=1e-3)


def test_a_folder_of_another_student_is_left_alone(
    roles_run: Path, opinion_run: Path, store: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(opinion_run, tmp_path / "other")
    before = (other / "model.safetensors").read_bytes()
    for folder in (other, roles_run):
        with pytest.raises(FingerprintMismatchError, match=naming("--output-dir", str(folder))):
            export(ExportSettings(run=roles_run, output_dir=folder, tables="int8", store=store))
    assert (other / "model.safetensors").read_bytes() == before


def test_wrong_flags_are_all_told(roles_run: Path, store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--onnx FILE", "--html FILE", "--output-dir FOLDER")):
        export(ExportSettings(run=roles_run, store=store))
    with pytest.raises(ConfigError, match=naming("--output-dir: ", "--tables float16")):
        export(ExportSettings(run=roles_run, output_dir=tmp_path / "x", store=store))
    export(ExportSettings(run=roles_run, output_dir=tmp_path / "small", tables="int8", store=store))
    with pytest.raises(ConfigError, match=naming("2 problems", "--onnx FILE", "--tables float16: ", "small", "int8")):
        export(ExportSettings(run=tmp_path / "small", tables="float16", store=store))
    assert not (tmp_path / "x").exists()


def test_without_its_set_a_student_is_written_but_not_measured(
    roles_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(roles_run, tmp_path / "run")
    record = read_record(run / "run.json")
    (run / "run.json").write_text(json.dumps(record | {"logit_sets": [str(tmp_path / "gone")]}))
    config = ExportSettings(run=run, output_dir=tmp_path / "small", tables="float16", store=tmp_path)
    assert export(config)["scores"] == {}
    assert "warning: " in capsys.readouterr().err
    assert Student.load(tmp_path / "small").config.table_dtype == "float16"
    with pytest.raises(DataError, match="'gone'"):
        export(config.model_copy(update={"set": "gone"}))


@pytest.fixture(scope="module")
def cbow_run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the pair task, of a student that torch exports in seconds; read only."""
    folder = tmp_path_factory.mktemp("cbow_run")
    train(tiny_config(store / "roles", folder, embedding="cbow", matrix_size=None), "distill train-student")
    return folder


@pytest.mark.slow
def test_the_command_prints_what_it_costs_and_makes_a_file_of_small_tables(
    cbow_run: Path, store: Path, tmp_path: Path
) -> None:
    small, file = tmp_path / "small", tmp_path / "x.onnx"
    flags = ["export", cbow_run, "--tables", "int8", "--store", store, "--output-dir", small]
    table = CliRunner().invoke(app, [*map(str, flags)], env={"COLUMNS": "200"})
    assert table.exit_code == 0, table.output
    assert "validation accuracy" in table.stdout
    result = json.loads(invoke("export", small, "--store", store, "--onnx", file, "--json").stdout)
    assert result["onnx"]["bytes"] == file.stat().st_size
    assert result["onnx"]["difference"] < 1e-5
    assert result["bytes"]["before"] == result["bytes"]["after"]
    ids = torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])
    expected = with_small_tables(Student.load(cbow_run), "int8")(*ids).detach()
    torch.testing.assert_close(run_onnx(file, *ids), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_pair_run_becomes_a_file_and_a_folder_that_agree(cbow_run: Path, store: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in cbow_run.iterdir() if path.is_file()}
    file, folder = tmp_path / "new" / "x.onnx", tmp_path / "small"
    result = export(ExportSettings(run=cbow_run, onnx=file, output_dir=folder, tables="float16", store=store))
    assert result["onnx"]["bytes"] == file.stat().st_size
    assert result["onnx"]["difference"] < 1e-5
    small = Student.load(folder)
    ids = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[9, 10]])
    torch.testing.assert_close(run_onnx(file, *ids), small(*ids).detach(), rtol=1e-4, atol=1e-5)
    metadata = session(file).get_modelmeta().custom_metadata_map
    assert json.loads(metadata["distill"]) == read_record(folder / "config.json")
    assert size(num_bytes(small)) in (folder / "README.md").read_text()
    weights = hashlib.sha256(before["model.safetensors"]).hexdigest()
    assert read_record(folder / "run.json")["exported"] == {"from_sha256": weights, "tables": "float16"}
    assert {path.name: path.read_bytes() for path in cbow_run.iterdir() if path.is_file()} == before


def test_a_folder_with_other_tables_is_left_alone(roles_run: Path, store: Path, tmp_path: Path) -> None:
    export(ExportSettings(run=roles_run, output_dir=tmp_path / "small", tables="int8", store=store))
    with pytest.raises(FingerprintMismatchError, match=naming("--output-dir", "small: ")):
        export(ExportSettings(run=roles_run, output_dir=tmp_path / "small", tables="float16", store=store))
    assert Student.load(tmp_path / "small").config.table_dtype == "int8"


def test_small_tables_become_no_other_folder(opinion_run: Path, store: Path, tmp_path: Path) -> None:
    export(ExportSettings(run=opinion_run, output_dir=tmp_path / "small", tables="int8", store=store))
    for tables in ("int8", None):
        flags = {"run": tmp_path / "small", "output_dir": tmp_path / "again", "tables": tables, "store": store}
        with pytest.raises(ConfigError, match=naming("--output-dir: ", "int8")):
            export(ExportSettings.model_validate(flags))
    assert not (tmp_path / "again").exists()


def test_numbers_beyond_float16_are_refused() -> None:
    large = student()
    with torch.no_grad():
        large.encoder.tables()[0].weight[3, 0] = 1e5
    with pytest.raises(ConfigError, match=naming("--tables float16: ", "int8")):
        with_small_tables(large, "float16")
    encoder = matrix_encoder(with_small_tables(large, "int8").encoder)
    assert encoder.parts()[0].table(torch.tensor([3]))[0, 0] == pytest.approx(1e5)


def as_bilstm(run: Path, folder: Path) -> Path:
    shutil.copytree(run, folder)
    config = Student.load(run).config
    encoder = config.encoder.model_copy(update={"pooling": "sum", "num_bigrams": 0})
    changes = {"head": "bilstm", "hidden_size": 4, "encoder": encoder}
    Student(config.model_copy(update=changes)).save(folder)
    return folder


def test_a_bilstm_run_can_have_small_tables(opinion_run: Path, store: Path, tmp_path: Path) -> None:
    run = as_bilstm(opinion_run, tmp_path / "run")
    export(ExportSettings(run=run, output_dir=tmp_path / "small", tables="int8", store=store))
    assert Predictor(tmp_path / "small")(["a good one ."])[0]["label"]


def test_a_bilstm_run_leaves_no_trace_of_an_onnx_file(opinion_run: Path, store: Path, tmp_path: Path) -> None:
    run = as_bilstm(opinion_run, tmp_path / "run")
    both = {"onnx": tmp_path / "new" / "x.onnx", "output_dir": tmp_path / "small", "tables": "int8"}
    with pytest.raises(ConfigError, match=naming("--onnx: ", "bilstm")):
        export(ExportSettings.model_validate(both | {"run": run, "store": store}))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("package", ["onnxruntime", "onnxscript"])
def test_a_missing_package_leaves_no_trace(
    package: str, opinion_run: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=naming(package, "'distill-offline[onnx]'")):
        export(ExportSettings(run=opinion_run, onnx=tmp_path / "new" / "x.onnx", store=store))
    assert list(tmp_path.iterdir()) == []


def test_the_command_tells_a_mistake_in_one_message(opinion_run: Path) -> None:
    result = CliRunner().invoke(app, ["export", str(opinion_run), "--tables", "int8"], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "--onnx FILE" in result.stderr
    assert result.stdout == ""


def test_an_unfinished_run_is_not_exported(opinion_run: Path, store: Path, tmp_path: Path) -> None:
    run = shutil.copytree(opinion_run, tmp_path / "run")
    record = read_record(run / "run.json")
    (run / "run.json").write_text(json.dumps({k: v for k, v in record.items() if k != "result"} | {"state": "running"}))
    with pytest.raises(ConfigError, match=naming("run: ", "distill train-student --task opinion")):
        export(ExportSettings(run=run, output_dir=tmp_path / "small", tables="int8", store=store))
    assert not (tmp_path / "small").exists()


def test_a_student_of_very_short_inputs_is_refused_early(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--onnx: ", "8 tokens")):
        write_onnx(student(max_seq_length=8).eval(), tmp_path / "x.onnx")
    assert list(tmp_path.iterdir()) == []

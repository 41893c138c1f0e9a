import dataclasses
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from transformers import TrainingArguments
from typer.testing import CliRunner

from distill.commands import COMMANDS, app, help_of
from distill.commands.help import EXAMPLES
from pipeline.sets.record import FILE_NAME
from pipeline.settings import Settings, flags
from student.settings import TrainSettings
from teacher.finetune_settings import FinetuneSettings

TRAINING = (
    "--task --set --tasks --mix --store --output-dir --where --query --recipe --init "
    "--embedding --lstm-size --channels --num-hidden-layers --num-attention-heads --intermediate-size --init-layers "
    "--pooler --layer-loss --layers --intermediate-epochs --layer-loss-weight --filters --optimizer "
    "--bidirectional --no-bidirectional --matrix-size --vector-size --pooling --initializer-range --window-size "
    "--num-bigrams --pairing --head --hidden-size --hidden-dropout --token-dropout --ngrams --alpha --soft-loss "
    "--temperature --class-weights --vocabulary --num-train-epochs --metric-for-best-model --held-out --group "
    "--calibration-rows --early-stopping-patience --learning-rate "
    "--warmup-steps --per-device-train-batch-size --max-grad-norm --seed --report-to --allow-unverified --weights"
)
CODEC = "--codec"
CORPUS = (
    "--corpus --max-documents --packing --min-seq-length --validation-every --masking --mlm-probability --manifest "
    "--data --model-name-or-path --model-revision --max-seq-length --seed"
)
AUGMENT = (
    "--num-variants --pairs --masked-lm --word-vectors --num-candidates --replace-probability --mask-probability "
    "--mask-token --pos-probability --ngram-probability --sentences"
)
RAY = "--ray --ray-workers --ray-resources"
# A flag that is renamed or removed breaks the scripts of those who use it: change this only on purpose.
FLAGS = {
    "finetune-teacher": f"{CORPUS} --task --tasks --output-dir --objective --num-train-epochs --held-out --group "
    "--max-steps --learning-rate --per-device-train-batch-size --warmup-steps --weight-decay --max-grad-norm "
    "--save-steps --report-to",
    "augment": f"{AUGMENT} {RAY} --task --method --splits --manifest --data --store --name --precision "
    "--max-seq-length --seed",
    "teacher-dump": f"{CORPUS} {CODEC} {AUGMENT} {RAY} --ray-write --augment --extend --variants --task --signal "
    "--teacher-labels --token-vectors --no-token-vectors --token-vectors-from --pooling "
    "--keep --layers-of --doc-stride --unlabelled --max-unlabelled --keep-near-copies --unlabelled-pairs --splits "
    "--store --name --precision --num-copies --max-tokens-per-batch --rows-per-shard --shard-index --num-shards --plan",
    "import": "file --task --teacher --answers --teacher-labels --rest --tokenizer --splits --manifest --data --store "
    "--name --max-seq-length --rows-per-shard --extend --allow-unverified",
    "check": "set --sample --tolerance --manifest --model-name-or-path --model-revision --store --seed "
    "--allow-unverified",
    "push": "set url --store --without-text --replace --public",
    "pull": "url --name --store --replace",
    "verify": "set_or_run --store --allow-unverified",
    "join": "set --store --data --manifest --name --allow-unverified",
    "diff": "a b --tolerance --store --allow-unverified",
    "recode": "set --codec --name --plan --sample --store --allow-unverified",
    "pretrain-student": "--set --store --output-dir --embedding --bidirectional --no-bidirectional --matrix-size "
    "--vector-size --pooling --init --initializer-range --alpha --temperature --vector-loss --vector-map "
    "--vocabulary --num-train-epochs --max-steps --learning-rate "
    "--warmup-steps --weight-decay --per-device-train-batch-size --max-grad-norm --save-steps --seed --report-to "
    "--allow-unverified",
    "filters": "set --layers --dim --store --output-dir --alpha --num-train-epochs --learning-rate "
    "--per-device-train-batch-size --seed --allow-unverified",
    "sql": "query --file --explain-row --store --csv --parquet",
    "train-student": TRAINING,
    "sweep": f"{TRAINING} {RAY} --grid --seeds --processes --experiment --manifest --data --model-name-or-path "
    "--teachers --teacher-seeds --plan",
    "cascade": "--stage --output-dir --set --where --disagreement --confidence --budget --target-accuracy --cost "
    "--timeout --store --allow-unverified",
    "evaluate": "run --cost --set --store --allow-unverified --data --text --text2 --label --manifest --teacher "
    "--baseline",
    "describe": "set_or_run --store",
    "export": "run --onnx --html --file --table-dtype --head-dtype --output-dir --tables --set --store",
    "certify": "run --replace --set --store --where --disagreement --confidence --allow-unverified",
    "predict": "run texts --cost --tasks --file --output --columns --manifest --explain --abstain "
    "--collect --collect-without-text",
    "masked-words": "runs --set --output --store --allow-unverified",
    "serve": "runs --host --port --workers --max-concurrent-requests --max-client-batch-size --payload-limit "
    "--cors-allow-origin --collect --collect-without-text",
    "report": "set_or_run --output --store --allow-unverified",
    "quickstart": "file --text --text2 --label --group --test --model-name-or-path --name --num-train-epochs "
    "--num-variants --unlabelled --output-dir --columns --demo",
    "tasks": "",
    "tasks show": "name --manifest",
}
OF_ALL = {"--json", "--log-file"}
SET_OPTION = ("pretrain-student", "train-student", "sweep", "evaluate", "export", "certify", "masked-words")
OLD_NAMES = {path: {"--logits"} for path in SET_OPTION}  # accepted, and not in the help
for trains in ("train-student", "sweep"):
    OLD_NAMES[trains] = OLD_NAMES.get(trains, set()) | {
        "--objective",
        "--objective-weight",
        "--init-from",
        "--init-vectors",
    }
OLD_NAMES["pretrain-student"] = OLD_NAMES.get("pretrain-student", set()) | {"--warmup-ratio"}
MODEL = ["--model-name-or-path", "x", "--output-dir", "y"]
HUGGING_FACE = {
    "num_train_epochs",
    "learning_rate",
    "per_device_train_batch_size",
    "warmup_steps",
    "weight_decay",
    "max_grad_norm",
    "save_steps",
    "seed",
    "output_dir",
}
NOT_IMPORTED = (
    "torch",
    "transformers",
    "datasets",
    "accelerate",
    "tokenizers",
    "duckdb",
    "prompt_toolkit",
    "sklearn",
    "scipy",
    "numpy",
    "pyarrow",
    "matplotlib",
    "jinja2",
)


def commands(command: Any, path: str = "") -> dict[str, Any]:
    """All commands by their names, groups that do something by themselves included."""
    found = {} if path == "" else {path: command}
    for name, part in getattr(command, "commands", {}).items():
        found |= commands(part, f"{path} {name}".strip())
    return found


def test_flags_are_those_promised() -> None:
    flags = {
        path: {
            name
            for p in command.params
            for name in ([*p.opts, *p.secondary_opts] if p.param_type_name == "option" else [p.name])
        }
        for path, command in commands(typer.main.get_command(app)).items()
    }
    assert flags == {path: set(names.split()) | OF_ALL | OLD_NAMES.get(path, set()) for path, names in FLAGS.items()}


@pytest.mark.parametrize("path", OLD_NAMES)
def test_old_names_of_flags_are_accepted_and_not_shown(path: str) -> None:
    help_text = CliRunner().invoke(app, [path, "--help"]).stdout
    assert "--set <" in help_text
    assert not [name for name in OLD_NAMES[path] if name in help_text.split()]


def test_an_old_name_means_the_new_one(opinion_run: Path, store: Path) -> None:
    told = [
        CliRunner().invoke(app, ["evaluate", str(opinion_run), name, str(store / "opinion"), "--json"]).stdout
        for name in ("--set", "--logits")
    ]
    assert told[0] == told[1] != ""


def test_flags_that_hugging_face_has_are_spelled_as_there() -> None:
    theirs = {field.name for field in dataclasses.fields(TrainingArguments)}
    assert theirs >= HUGGING_FACE
    assert set(flags(FinetuneSettings)) >= HUGGING_FACE
    assert set(flags(TrainSettings)) >= HUGGING_FACE - {"weight_decay", "save_steps"}


@pytest.mark.parametrize("path", FLAGS)
def test_every_command_and_flag_has_a_help_text(path: str) -> None:
    assert CliRunner().invoke(app, [*path.split(), "--help"]).exit_code == 0
    command = commands(typer.main.get_command(app))[path]
    assert command.help
    assert not [parameter.name for parameter in command.params if not parameter.help]


def test_the_command_line_starts_without_heavy_libraries() -> None:
    code = f"import sys, distill.commands; print(*[name for name in {NOT_IMPORTED} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.split() == []


def test_all_wrong_flags_are_told_at_once() -> None:
    flags = {"--name": "../x", "--max-seq-length": "3", "--rows-per-shard": "0", "--shard-index": "-1"}
    arguments = [part for flag in flags.items() for part in flag]
    result = CliRunner().invoke(app, ["teacher-dump", "--task", "sst2", *arguments])
    assert result.exit_code == 2
    assert "4 problems" in result.stderr
    lines = [line.removeprefix("  - ") for line in result.stderr.splitlines() if line.startswith("  - ")]
    assert {line.split(":")[0] for line in lines} == flags.keys()
    assert all(flags[line.split(":")[0]] in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        (
            ["teacher-dump", "--task", "sst2", "--codec", "topk-5", "--rows-per-shard", "0"],
            {
                "--codec: ",
                "--rows-per-shard",
            },
        ),
        (
            ["teacher-dump", "--corpus", "tiny", "--task", "sst2", "--splits", "train", "--augment", "tinybert"],
            {
                "--task: ",
                *(f"{flag}: " for flag in ("--splits", "--augment")),
            },
        ),
        (
            ["teacher-dump", "--corpus", "tiny", "--num-variants", "2", "--extend", "x"],
            {f"{flag}: " for flag in ("--num-variants", "--extend")},
        ),
        (
            ["finetune-teacher", *MODEL, "--objective", "mlm", "--corpus", "tiny", "--num-train-epochs", "2"],
            {"--num-train-epochs: "},
        ),
        (
            ["finetune-teacher", *MODEL, "--task", "sst2", "--max-steps", "2", "--masking", "uniform"],
            {f"{flag}: " for flag in ("--max-steps", "--masking")},
        ),
        (["finetune-teacher", *MODEL, "--objective", "mlm"], {"--objective: "}),
        (["finetune-teacher", *MODEL, "--corpus", "tiny"], {"--objective: "}),
        (["teacher-dump", "--task", "sst2", "--signal", "mlm"], {"--signal mlm: "}),
        (
            ["teacher-dump", "--task", "mrpc", "--seed", "1"],
            {"--seed: "},
        ),
        (["teacher-dump", "--plan", "--extend", "x"], {"--plan: "}),
    ],
)
def test_flags_of_the_other_kind_are_refused_all_at_once(arguments: list[str], problems: set[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert [problem for problem in problems if problem not in result.stderr] == []
    assert f"{len(problems)} problems" in result.stderr or len(problems) == 1


def test_other_help_texts_are_for_flags_that_are_there() -> None:
    classes: list[type[Settings]] = [Settings]
    for config in classes:
        classes += config.__subclasses__()
        assert config.helps.keys() <= flags(config).keys()
    assert len(classes) > 40


def test_one_wrong_flag_is_one_line() -> None:
    flags = ["--task", "sst2", "--model-name-or-path", "x", "--output-dir", "y", "--learning-rate", "0"]
    result = CliRunner().invoke(app, ["finetune-teacher", *flags])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("error: ")
    assert all(part in result.stderr for part in ("--learning-rate: ", "0.0"))


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["finetune-teacher", "--task", "sst2", "--output-dir", "x"], "--model-name-or-path"),
        (["teacher-dump", "--precision", "fp8"], "--precision"),
        (["teacher-dump", "--max-seq-len", "3"], "--max-seq-length"),
    ],
)
def test_missing_and_unknown_flags_are_named(arguments: list[str], flag: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert flag in result.stderr


@pytest.mark.parametrize(
    ("value", "suggested"), [("compair", "Did you mean compare?"), ("layers", None), ("it's", None)]
)
def test_unknown_values_of_a_flag_are_named_with_a_similar_one(value: str, suggested: str | None) -> None:
    result = CliRunner().invoke(app, ["train-student", "--set", "x", "--pairing", value])
    assert result.exit_code == 2
    # The words of the library that checks values are not shown.
    assert re.search(rf"'--pairing': ['\"]{value}['\"] is not one of", result.stderr)
    assert ("Did you mean" in result.stderr) == (suggested is not None)
    assert suggested is None or suggested in result.stderr


def test_the_help_has_every_command_once_under_its_panel_and_cuts_no_sentence() -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).stdout
    panels = dict(re.findall(r"^(\w[\w ]*):\n((?:  .*\n)+)", text, re.MULTILINE))
    assert list(panels) == ["Options", *COMMANDS]
    listed = {title: re.findall(r"^  (\S+)", lines, re.MULTILINE) for title, lines in panels.items()}
    assert {title: listed[title] for title in COMMANDS} == {title: list(names) for title, names in COMMANDS.items()}
    assert "..." not in text.partition("Options:")[2]
    assert all(help_of(name) in " ".join(text.split()) for names in COMMANDS.values() for name in names)


@pytest.mark.parametrize("path", FLAGS)
def test_help_cuts_no_flag_and_keeps_brackets_on_a_narrow_screen(path: str) -> None:
    text = CliRunner().invoke(app, [*path.split(), "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).stdout
    command = commands(typer.main.get_command(app))[path]
    flags = {flag for p in command.params if p.param_type_name == "option" for flag in (*p.opts, *p.secondary_opts)}
    assert flags - OLD_NAMES.get(path, set()) <= set(re.findall(r"--?[a-z][a-z0-9-]*", text))
    assert "…" not in re.sub(r"<.*?>", "", text)
    assert "Annotated" not in text
    if path == "train-student":
        assert "[u, w, |u-w|]" in text


def test_flags_stand_under_what_they_are_about() -> None:
    text = CliRunner().invoke(app, ["teacher-dump", "--help"]).stdout
    sections = dict(re.findall(r"^([A-Z][^\n]*):\n(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL))
    for title, flag in (("A corpus", "--packing"), ("Variants of training rows", "--mask-probability")):
        assert flag in sections[title]
        assert flag not in sections["Options"]
    assert "distill teacher-dump --task mnli\n" in sections["Examples"]


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_examples_have_flags_that_exist(line: str) -> None:
    program, name, *words = shlex.split(line)
    known = {flag for p in commands(typer.main.get_command(app))[name].params for flag in p.opts}
    assert program == "distill"
    assert {word for word in words if word.startswith("--")} <= known


def test_a_command_without_arguments_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTILL_STORE", str(tmp_path))
    result = CliRunner().invoke(app, ["sql"], input="select 1")
    assert (result.exit_code, result.exception) == (0, None)


def test_the_version_is_that_of_the_package() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"distill {version('distill-offline')}\n")


def test_names_of_sets_are_completed(tmp_path: Path) -> None:
    for name in ("mnli", "mnli-2", "mrpc", "no[set]"):
        (tmp_path / name).mkdir()
        (tmp_path / name / FILE_NAME).touch()
    (tmp_path / "mnli-of-none").mkdir()
    shell = {"_DISTILL_COMPLETE": "complete_bash", "COMP_CWORD": "4"}
    words = f"distill verify --store {tmp_path} mn"
    result = CliRunner().invoke(app, [], prog_name="distill", env=shell | {"COMP_WORDS": words})
    assert result.stdout.split() == ["mnli", "mnli-2"]

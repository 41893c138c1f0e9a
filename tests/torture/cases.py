"""The commands that are tortured: all that write. ``W`` is the world, ``O`` the folder that they write to."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.torture.visit import Try

OPINION = "--manifest W/opinion.yaml --data W/data"
DUMP = f"{OPINION} --model-name-or-path W/teachers/opinion --max-seq-length 32 --rows-per-shard 20"
PLAIN = f"teacher-dump {DUMP} --store O --no-token-vectors"
JOB = f"{PLAIN} --num-shards 2"
SEVERAL = "--tasks W/opinion.yaml,W/roles.yaml --data W/data"
LAYERS = "states=1:pca-8 values=1"
CORPUS = "--corpus tiny --data W/corpus.txt --max-seq-length 32 --min-seq-length 4 --validation-every 5"
TOKENS = f"{CORPUS} --model-name-or-path W/teachers/mlm --rows-per-shard 12"
STUDENT = "--matrix-size 3 --vector-size 5 --hidden-size 8 --num-train-epochs 2 --learning-rate 0.01"
HELD_OUT = "source_row % 2 = 0"
MASKED = "--pos-probability 0 --mask-probability 0.3 --num-variants 2"
AUGMENT = f"augment {OPINION} --method mask-pos {MASKED} --store O"
FINETUNE = (
    f"finetune-teacher {OPINION} --model-name-or-path W/bert --output-dir O/teacher --max-seq-length 32 "
    "--num-train-epochs 2 --per-device-train-batch-size 8 --save-steps 2"
)


@dataclass(frozen=True)
class Case:
    """A command, and what it is tortured with.

    Attributes:
        command: its line.
        before: a folder of the world that a copy of is what it finds.
        measured: patterns of the files that hold speeds and durations, which differ from run to run.
        beside: the line of a command that runs undisturbed at the same time.
        rank: of two processes that a launcher joins for the command, the one that is disturbed; None for one alone.
        is_short: whether the short form has it, too.
    """

    command: str
    before: str | None = None
    measured: tuple[str, ...] = ()
    beside: str | None = None
    rank: int | None = None
    is_short: bool = False


CASES = {
    "teacher-dump": Case(PLAIN),
    "teacher-dump, rank 0 of two": Case(PLAIN, rank=0),
    "teacher-dump, rank 1 of two": Case(PLAIN, rank=1, is_short=True),
    "teacher-dump, two jobs": Case(f"{JOB} --shard-index 0", beside=f"{JOB} --shard-index 1"),
    "teacher-dump, token vectors": Case(f"teacher-dump {DUMP} --store O --token-vectors"),
    "teacher-dump --augment": Case(f"{PLAIN} --augment mask-pos {MASKED}"),
    "teacher-dump --extend": Case(f"{PLAIN} --name new --extend opinion", before="short"),
    "teacher-dump, layers": Case(f"{PLAIN} --keep '{LAYERS} cls=1 attention=1'"),
    "teacher-dump, layers added": Case(
        f"teacher-dump {DUMP} --data W/fewer --store O --no-token-vectors --keep values=1", before="short"
    ),
    "teacher-dump --augment mask-each": Case(f"{PLAIN} --augment mask-each --sentences 6"),
    "teacher-dump --corpus": Case(f"teacher-dump {TOKENS} --signal mlm --codec sampled-5 --store O"),
    "teacher-dump --signal vectors": Case(
        f"teacher-dump {CORPUS} --signal vectors --codec pca-8 --rows-per-shard 12 "
        "--model-name-or-path W/bert --store O"
    ),
    "augment": Case(AUGMENT, is_short=True),
    "augment, rank 0 of two": Case(AUGMENT, rank=0),
    "augment, rank 1 of two": Case(AUGMENT, rank=1),
    "import": Case(f"import W/answers.jsonl {OPINION} --teacher someone --max-seq-length 32 --store O"),
    "recode": Case("recode W/logits/tokens --name topk --codec topk-5 --store O"),
    "push": Case("push W/logits/opinion file://O/there"),
    "pull": Case("pull file://W/there --store O", is_short=True),
    "pull --replace": Case("pull file://W/there --store O --replace", before="short"),
    "join": Case(f"join W/blind {OPINION} --name joined --store O"),
    "train-student": Case(f"train-student --set W/logits/opinion --output-dir O/run {STUDENT}", is_short=True),
    "train-student --layer-loss": Case(
        "train-student --set W/logits/layers --output-dir O/run --embedding bert --init-layers 1 "
        "--layer-loss hid-seq+val-kl --intermediate-epochs 2 --num-train-epochs 1"
    ),
    "train-student --tasks": Case(
        f"train-student --tasks opinion,roles --store W/logits --output-dir O/runs {STUDENT}"
    ),
    "filters": Case("filters W/logits/layers --output-dir O/filters --num-train-epochs 2"),
    "pretrain-student": Case(
        "pretrain-student --set W/logits/tokens --output-dir O/run --matrix-size 3 --vector-size 5 "
        "--per-device-train-batch-size 16 --max-steps 4 --save-steps 2"
    ),
    "finetune-teacher": Case(FINETUNE),
    "finetune-teacher, rank 0 of two": Case(FINETUNE, rank=0),
    "finetune-teacher, rank 1 of two": Case(FINETUNE, rank=1),
    "finetune-teacher --tasks": Case(
        f"finetune-teacher {SEVERAL} --model-name-or-path W/bert --output-dir O/teachers --max-seq-length 32 "
        "--num-train-epochs 2 --per-device-train-batch-size 8 --save-steps 2"
    ),
    "sweep": Case(
        f"sweep --set W/logits/opinion --output-dir O/sweep {STUDENT} --num-train-epochs 1 --grid alpha=0.5,1"
    ),
    "certify": Case(f"certify O --where '{HELD_OUT}' --disagreement 0.5 --confidence 0.5", before="run"),
    "predict --file": Case("predict W/run --file W/texts.jsonl --output O/answers.parquet", is_short=True),
    "export": Case("export W/run --output-dir O/small --tables int8"),
    "export --onnx": Case("export W/run --onnx O/student.onnx"),
    "report": Case("report W/run --output O/report.html"),
    "results": Case(
        "results --tasks '' --manifest W/opinion.yaml --data W/data --teachers W/teachers --seeds 1 "
        "--experiment W/experiment.yaml --output-dir O/results",
        measured=("cells/*/*", "results.json", "RESULTS.md"),
    ),
}


def words(line: str, world: Path, out: Path) -> list[str]:
    """A command's words: ``W`` and ``O`` at the beginning of a path are places."""
    placed = [word.replace("W/", f"{world}/").replace("O/", f"{out}/") for word in shlex.split(line)]
    return [str(out) if word == "O" else word for word in placed]


def run_all(world: Path, *lines: str) -> None:
    """Runs commands one after another, each in a process of its own."""
    for line in lines:
        outcome = Try(words(line, world, world), world).outcome()
        assert outcome.code == 0, f"{line}: {outcome.stderr}"

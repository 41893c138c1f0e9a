"""Single bits of the files of sets and students, flipped one at a time: each is detected, or changes nothing.

python -m tests.fuzz.flips [FLIPS]
"""

import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.errors import DistillError
from pipeline.file_names import RUN_RECORD
from pipeline.record_file import read_work_record, write_record
from pipeline.sets.card import CARD_FILE, card_text
from pipeline.sets.open import load_set_tokenizer, usable_record
from pipeline.sets.record import read_set_record, write_set_record
from pipeline.sets.verify import verify_shards
from student.model.student import Student
from student.predict.predictor import Predictor

FIXTURES = Path(__file__).parents[1] / "fixtures" / "formats" / "v1"
SETS, RUNS = ("variants", "hidden"), ("run", "run-int8", "run-pairs")
Read = Callable[[Path], Any]


def what_a_set_says(root: Path) -> Any:
    """All that is read of a set, verified."""
    record = usable_record(root)
    verify_shards(root, record)
    return record, load_set_tokenizer(root, record.tokenizer).to_str()


def what_a_student_says(folder: Path) -> Any:
    """All that is read of a student, and its answers."""
    record = read_work_record(folder / RUN_RECORD)
    predictor = Predictor(folder)
    weights = {name: tensor.tolist() for name, tensor in predictor.student.state_dict().items()}
    known = {key: record[key] for key in ("state", "settings", "command", "result")}
    return known, predictor.student.config, weights, predictor(["the soup was good", "not at all"])


def copies(folder: Path) -> list[tuple[Path, Read]]:
    """Sets and students as this release writes them, with what reads each."""
    for name in (*SETS, *RUNS):
        shutil.copytree(FIXTURES / name, folder / name)
    for name in SETS:
        record = read_set_record(folder / name)
        write_set_record(folder / name, record)
        (folder / name / CARD_FILE).write_text(card_text(record))
    for name in RUNS:
        write_record(folder / name / RUN_RECORD, read_work_record(folder / name / RUN_RECORD))
        student = Student.load(folder / name)
        student.save(folder / name)
        (folder / name / CARD_FILE).write_text(str(student.generate_model_card()))
    return [(folder / name, what_a_set_says) for name in SETS] + [(folder / name, what_a_student_says) for name in RUNS]


def flip(path: Path, bit: int, read: Callable[[], Any], expected: Any) -> str:
    """What comes of one flipped bit: ``detected``, ``harmless``, or what is wrong; the file is mended after."""
    data = path.read_bytes()
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    path.write_bytes(flipped)
    try:
        return "harmless" if read() == expected else f"missed: bit {bit}"
    except DistillError:
        return "detected"
    except Exception as error:  # noqa: BLE001
        return f"wrong error: bit {bit}: {error!r}"
    finally:
        path.write_bytes(data)


def flips(folder: Path, count: int, seed: int = 0) -> dict[str, Counter[str]]:
    """Flips so many bits, of all files by turns, at random places; returns how often what came of it, by file."""
    outcomes: dict[str, Counter[str]] = {}
    places = []
    for root, read in copies(folder):
        expected = read(root)
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            places.append((path, lambda root=root, read=read: read(root), expected))
            outcomes[str(path.relative_to(folder))] = Counter()
    draw = random.Random(seed)  # noqa: S311
    for number in range(count):
        path, read_it, expected = places[number % len(places)]
        outcome = flip(path, draw.randrange(8 * path.stat().st_size), read_it, expected)
        outcomes[str(path.relative_to(folder))][outcome] += 1
    return outcomes


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        counted = flips(Path(temporary), int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
    sys.stdout.write(json.dumps(counted, indent=2) + "\n")

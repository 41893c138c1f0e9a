"""A tiny multi-label task with a teacher that is right by construction, and its logit set."""

from pathlib import Path

import torch

from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import make_target
from pipeline.tasks.task import Task, load_task
from teacher.dumps import dump
from teacher.finetune.common import save_teacher
from teacher.models.classifier import new_classifier
from teacher.settings import DumpSettings

TOPICS = ("food", "service", "music")
MANIFEST = """
name: topics
type: multilabel
columns: {sentence1: sentence1, label: topics}
labels: [food, service, music]
label_separator: "|"
metrics: [micro_f1, macro_f1]
splits: {train: , validation: }
"""


def write_topics(folder: Path, sentences: list[str]) -> Path:
    """Writes the manifest, and rows whose labels are the topics that their text names; returns the manifest's path."""
    rows = [f'"{text}",{"|".join(topic for topic in TOPICS if topic in text)}\n' for text in dict.fromkeys(sentences)]
    for split, part in (("train", rows[:60]), ("validation", rows[60:100])):
        (folder / f"{split}.csv").write_text("sentence1,topics\n" + "".join(part))
    manifest = folder / "topics.yaml"
    manifest.write_text(MANIFEST)
    return manifest


def random_teacher(folder: Path, task: Task, encoder: Path) -> Path:
    """A classifier with a random head, whose outputs differ from row to row."""
    torch.manual_seed(1)
    teacher = new_classifier(task, make_target(task), str(encoder), None, 32)
    torch.nn.init.normal_(teacher.model.classifier.weight)
    save_teacher(teacher.model, teacher.name, teacher.revision, folder)
    return folder


def dump_topics(folder: Path, work: Path, name: str = "topics", **changes: object) -> ExampleSet:
    """The verified set of such a teacher, by its name in ``folder/store``."""
    manifest = write_topics(folder, (work / "sentences.txt").read_text().splitlines())
    teacher = random_teacher(folder / "teacher", load_task(manifest=manifest), work / "bert")
    flags = {"manifest": manifest, "data": folder, "model_name_or_path": str(teacher), "store": folder / "store"}
    small = {"name": name, "max_seq_length": 32, "rows_per_shard": 25, "token_vectors": False}
    dump(DumpSettings.from_flags(**flags | small | changes), "distill teacher-dump")
    return ExampleSet.open(folder / "store" / name)

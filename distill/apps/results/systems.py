"""The students and teachers of a table: a run or a fine-tuned BERT as a system."""

from collections.abc import Sequence
from pathlib import Path

import torch

from distill.apps.results.system import System
from pipeline.arrays import Floats
from pipeline.sets.reader import ExampleSet
from pipeline.tasks.task import Task

KEPT = ("config.json", "model.safetensors", "model-*.safetensors", "tokenizer.json")


def student_system(run: Path) -> System:
    """The student of a finished run, on the CPU."""
    from student.model.model import num_parameters
    from student.predict import Predictor

    predictor = Predictor(run)
    student = predictor.student.to("cpu")
    return System(student.config.target, predictor.logits, num_parameters(student), bytes_of(run))


def teacher_system(task: Task, folder: Path, logit_set: ExampleSet) -> System:
    """The teacher of a set, on the CPU, in float32."""
    from teacher.models.batches import teacher_logits, tokens_per_batch
    from teacher.models.classifier import load_teacher

    record = logit_set.record
    labels = record.teacher.labels if record.target.has_labels else ()
    teacher = load_teacher(task, str(folder), None, labels, record.max_seq_length, record.windows)
    max_tokens = tokens_per_batch(torch.device("cpu"))

    def logits(texts1: Sequence[str], texts2: Sequence[str] | None) -> Floats:
        inputs = teacher.reader.tokenize(texts1, texts2, record.max_seq_length)
        with torch.inference_mode():
            return teacher_logits(teacher, inputs, max_tokens)

    return System(record.target, logits, teacher.num_parameters, bytes_of(folder))


def bytes_of(folder: Path) -> int:
    """Bytes of what a model needs to read text: settings, weights, tokenizer."""
    return sum(path.stat().st_size for name in KEPT for path in folder.glob(name))

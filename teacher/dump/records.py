"""The part of a record that says which model speaks."""

from pipeline.logit_set.record_parts import TeacherRecord
from teacher.inference.loaded import LoadedModel

LIBRARIES = ("distill-offline", "torch", "transformers", "tokenizers", "pyarrow")


def teacher_record(teacher: LoadedModel, labels: tuple[str, ...] = ()) -> TeacherRecord:
    """Describes a teacher; ``labels`` is the order of a classifier's own outputs."""
    return TeacherRecord(
        name=teacher.name,
        revision=teacher.revision,
        weights_sha256=teacher.weights_sha256,
        num_parameters=teacher.num_parameters,
        labels=labels,
    )

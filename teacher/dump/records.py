"""The parts of a record that say who speaks, and in which tokens."""

from tokenizers import Tokenizer

from pipeline.logit_set.record_parts import TeacherRecord, TokenizerRecord
from pipeline.text.tokenizer import pad_id, tokenizer_sha256, vocabulary_size
from teacher.inference.loaded import LoadedModel, weights_sha256

LIBRARIES = ("distill-offline", "torch", "transformers", "tokenizers", "pyarrow")


def teacher_record(teacher: LoadedModel, labels: tuple[str, ...] = ()) -> TeacherRecord:
    """Describes a teacher; ``labels`` is the order of a classifier's own outputs."""
    return TeacherRecord(
        name=teacher.name,
        revision=teacher.revision,
        weights_sha256=weights_sha256(teacher.model),
        num_parameters=teacher.num_parameters,
        labels=labels,
    )


def tokenizer_record(tokenizer: Tokenizer) -> TokenizerRecord:
    """Describes the tokenizer that a set's ids belong to."""
    return TokenizerRecord(
        sha256=tokenizer_sha256(tokenizer.to_str()),
        vocabulary_size=vocabulary_size(tokenizer),
        pad_id=pad_id(tokenizer),
    )

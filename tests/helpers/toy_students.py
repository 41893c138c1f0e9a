"""Students of a toy vocabulary, made in memory."""

from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np
import torch

from pipeline.arrays import Ragged
from pipeline.tasks.target import Target
from student.data import Examples
from student.encoders.encoder import Encoder
from student.encoders.matrices import BigramSums, matrix_encoder
from student.encoders.specs import AnyEncoder
from student.model.architecture import StudentConfig, TokenLabelConfig
from student.model.ngrams import LEAST_ROWS, Ngrams, NgramSizes, spelled
from student.model.student import Student, TokenLabelStudent
from student.row_adam import RowAdam

SPECS = {spec.model_fields["embedding"].default: spec for spec in get_args(AnyEncoder)}
ENCODER_FIELDS = {name for spec in SPECS.values() for name in spec.model_fields}


def student_config(**changes: object) -> StudentConfig:
    values: dict[str, object] = {
        "task": "toy",
        "target": Target(kind="classes", names=("no", "yes", "maybe")),
        "metrics": ("accuracy",),
        "is_pair": False,
        "vocabulary_size": 10,
        "pad_id": 0,
        "tokenizer_sha256": "0" * 64,
        "max_seq_length": 16,
        "hidden_size": 6,
        "hidden_dropout": 0.5,
    }
    of_encoder = {name: changes.pop(name) for name in ENCODER_FIELDS & changes.keys()}
    return StudentConfig.model_validate(values | {"encoder": encoder_of(**of_encoder)} | changes)


def encoder_of(**changes: Any) -> dict[str, Any]:
    """The specification with these sizes. A size of 0 chooses an encoder without it."""
    usual = {"matrix_size": 3, "vector_size": 4, "bidirectional": True, "num_bigrams": 0}
    sizes = usual | changes
    by_sizes = "cbow" if not sizes["matrix_size"] else "hybrid" if sizes["vector_size"] else "cmow"
    embedding = changes.get("embedding", by_sizes)
    fields = SPECS[embedding].model_fields
    # A size that does not fit stays, so that it is refused.
    others = changes.keys() - fields - {"bidirectional", "initializer_range"}
    unfit = {name: changes[name] for name in others if changes[name]}
    return {name: value for name, value in sizes.items() if name in fields} | unfit | {"embedding": embedding}


def student(**changes: object) -> Student:
    torch.manual_seed(0)
    return Student(student_config(**changes)).eval()


def word_student(**changes: object) -> TokenLabelStudent:
    """A student of labelled words."""
    target = Target(kind="classes", names=("B-X", "O", "I-X"))
    values = student_config(**changes).model_dump() | {"kind": "words", "target": target}
    torch.manual_seed(0)
    fields = TokenLabelConfig.model_fields
    return TokenLabelStudent(TokenLabelConfig.model_validate({k: v for k, v in values.items() if k in fields})).eval()


def add_ngrams(student: Student, tokenizer_json: str, seed: int = 0) -> None:
    """Gives a student an n-gram part with random weights."""
    config, random = student.config, np.random.default_rng(seed)
    spelling_Y, start_V = spelled(tokenizer_json, config.num_tokens)
    sizes = NgramSizes(num_rows=LEAST_ROWS, num_bytes=len(spelling_Y))
    part = Ngrams(sizes, config.num_tokens, config.target.num_logits, config.num_sequences == 2)
    part.spelling_Y, part.start_V = spelling_Y, start_V
    part.weight_GRC = torch.from_numpy(random.integers(-127, 128, part.weight_GRC.shape).astype(np.int8))
    for name in ("scale_C", "overlap_C", "bias_C"):
        setattr(part, name, torch.from_numpy(random.normal(0, 0.02, config.target.num_logits).astype(np.float32)))
    part.network = torch.tensor(0.5)
    student.ngrams, student.config = part, config.model_copy(update={"ngrams": sizes})


def padded(sentences: list[list[int]], pad_id: int = 0) -> torch.Tensor:
    width = max(1, *map(len, sentences), 0)
    return torch.tensor([s + [pad_id] * (width - len(s)) for s in sentences])


PAIRS = [(1, 2), (2, 1), (2, 2), (2, 6), (6, 3)]
BIGRAMS = {"num_bigrams": len(PAIRS)}


@torch.no_grad()
def fill(sums: BigramSums | None) -> None:
    assert sums is not None
    assert isinstance(sums.table, torch.nn.Embedding)
    torch.nn.init.normal_(sums.table.weight)
    sums.set_pairs(torch.tensor(PAIRS))


def pair_student(**changes: object) -> Student:
    """A student whose vectors of pairs decide."""
    made = student(**BIGRAMS | changes)
    fill(matrix_encoder(made.encoder).bigrams)
    return made


def lstm_student(embedding: str = "lstm", **changes: object) -> Student:
    pairing = "compare" if embedding == "lstm" else "attention"
    return student(**{"embedding": embedding, "vector_size": 5, "lstm_size": 4, "pairing": pairing} | changes)


def aligned_student(**changes: object) -> Student:
    return student(**{"embedding": "aligned", "vector_size": 5, "pairing": "attention", "is_pair": True} | changes)


def recurrent_student(**changes: object) -> Student:
    return student(**{"embedding": "recurrent", "vector_size": 5} | changes)


def toy_examples(ids1: list[list[int]], ids2: list[list[int]] | None) -> Examples:
    count = len(ids1)
    return Examples(
        Ragged.of(ids1),
        None if ids2 is None else Ragged.of(ids2),
        np.zeros(count, np.int64),
        np.full(count, np.nan, np.float32),
        np.zeros((count, 2), np.float32),
        np.ones(count, np.float32),
        np.zeros((count, 2), np.int64),
        "",
    )


def ragged(sentences: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Sentences end to end, and where each starts."""
    ids_T = torch.tensor([token for sentence in sentences for token in sentence], dtype=torch.int64)
    return ids_T, torch.tensor([0, *map(len, sentences)]).cumsum(0)


def trained_weights(model: Student, batches: list[list[list[int]]], by_rows: bool) -> dict[str, torch.Tensor]:
    """The weights after a large step on each batch, with gradients of rows of the tables or of whole ones."""
    encoder = model.encoder
    tables = [table.weight for table in encoder.trained_tables()]
    others = [*encoder.other_parameters(), *model.head.parameters()]
    optimizer = RowAdam(tables, others, lr=0.1, padding_idx=encoder.pad_id)
    for sentences in batches:
        ids_T, starts_S = ragged(sentences)
        rows = optimizer.use(ids_T) if by_rows else None
        model.logits(ids_T, starts_S, rows).square().sum().backward()  # type: ignore[no-untyped-call]
        optimizer.clip_gradients(1.0)
        optimizer.step()
        optimizer.zero_grad()
    optimizer.catch_up()
    return model.state_dict()


def assert_rows_train_as_whole_tables(make: Callable[[], Student], batches: list[list[list[int]]]) -> None:
    """Gradients of rows move every weight of a student with vectors alone as those of whole tables do."""
    by_rows, by_tables = (trained_weights(make(), batches, by_rows) for by_rows in (True, False))
    start = make().state_dict()
    for name, weight in by_rows.items():
        torch.testing.assert_close(weight, by_tables[name], rtol=0, atol=1e-3)  # of steps of 0.1
        assert not torch.equal(weight, start[name]), name
    assert not by_rows["encoder.vectors.trained.weight"][make().encoder.pad_id].any()


def assert_same_features_and_gradients(
    encoder: Encoder, exact: Encoder, sentences: list[list[int]], atol: float, is_pair: bool = False
) -> None:
    """An encoder has the features of another, and the gradients of all its parameters.

    Args:
        encoder: in float32.
        exact: in float64.
        sentences: of which the second half are second sentences if ``is_pair``.
        atol: relative to the largest number of an array, if that is above 1.
        is_pair: whether sentences are read as pairs.
    """
    ours, expected = (_features_and_gradients(each, sentences, is_pair) for each in (encoder, exact))
    assert len(ours) == len(expected) == 1 + len(list(encoder.parameters()))
    for one, other in zip(ours, expected, strict=True):
        largest = float(other.abs().max()) if other.numel() else 0.0
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=atol * max(1.0, largest))


def _features_and_gradients(encoder: Encoder, sentences: list[list[int]], is_pair: bool) -> list[torch.Tensor]:
    read = encoder.reduce_pairs if is_pair else encoder.reduce
    features_BF = read(*ragged(sentences))
    # The gradient of a square differs between features and rows, so exchanged ones would show.
    features_BF.square().sum().backward()  # type: ignore[no-untyped-call]
    return [features_BF.detach(), *(part.grad for part in encoder.parameters() if part.grad is not None)]

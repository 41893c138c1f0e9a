"""A student as an ONNX file that takes any batch and length. Shapes: B batch, L and K tokens, C logits."""

import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from pipeline.errors import ConfigError, IntegrityError, MissingDependencyError, raise_all
from pipeline.files import write_alone
from student.encoders.encoder import without_padding
from student.model.heads import HEADS, PAIRINGS
from student.model.student import Student, TaskStudent, TokenLabelStudent

if TYPE_CHECKING:
    import onnxruntime

TOLERANCE = 1e-3  # share of the largest logit. float32 products in another order differ by far less
CHECKED_BATCHES = (1, 2, 7)
EXAMPLE_SHAPE = (3, 5)


class Graph(nn.Module):
    """A student's forward pass in which no Python loop or branch depends on a length."""

    def __init__(self, student: Student) -> None:
        super().__init__()
        self.encoder, self.head = student.encoder, student.head
        self.compare = PAIRINGS[student.config.pairing].compare
        self.longest = student.config.max_seq_length

    def forward(self, ids1: torch.Tensor, ids2: torch.Tensor | None = None) -> torch.Tensor:
        """Returns logits_BC, float32, for int64 ids1_BL, and ids2_BK if the student reads two sequences."""
        if ids2 is not None and self.compare is None:
            return self.head(self.encoder.exported_pairs(ids1, ids2))  # type: ignore[no-any-return]
        features_BF = self.encoder.exported(ids1, self.longest)
        if ids2 is not None:
            assert self.compare is not None
            features_BF = self.compare(features_BF, self.encoder.exported(ids2, self.longest))
        return self.head(features_BF)  # type: ignore[no-any-return]


class TokenGraph(nn.Module):
    """The forward pass of a student that labels words: logits of each token."""

    def __init__(self, student: TokenLabelStudent) -> None:
        super().__init__()
        self.encoder, self.head, self.reads_alone = student.encoder, student.head, student.reads_alone
        self.longest, self.pad_id = student.config.max_seq_length, student.config.pad_id

    def forward(self, ids1: torch.Tensor) -> torch.Tensor:
        """Returns logits_BLC, float32, for int64 ids1_BL. Logits of padding have no meaning."""
        features_BLP = self.encoder.exported_scan(ids1, self.longest)
        if self.reads_alone:
            own_BLF = self.encoder.exported_alone(ids1) * (ids1 != self.pad_id).unsqueeze(2)
            nothing_B1F = torch.zeros_like(own_BLF[:, :1])
            left_BLF = torch.cat([nothing_B1F, own_BLF], dim=1)[:, : ids1.shape[1]]
            right_BLF = torch.cat([own_BLF, nothing_B1F], dim=1)[:, 1:]
            features_BLP = torch.cat([features_BLP, left_BLF, own_BLF, right_BLF], dim=2)
        return self.head(features_BLP)  # type: ignore[no-any-return]


def check_exportable(student: TaskStudent) -> None:
    """Checks early that `write_onnx` supports the student.

    Raises:
        ConfigError: if torch cannot export the student's head or encoder.
        MissingDependencyError: if onnx, onnxscript or onnxruntime is not installed.
    """
    head = student.config.head
    problems = student.encoder.export_problems(student.config.max_seq_length)
    if not HEADS[head].can_be_exported:
        problems.append(f"a student with a {head} head cannot be exported. Train one with another --head")
    if student.ngrams is not None:
        problems.append("n-grams of a text have no operators in ONNX. Train a student without --ngrams")
    raise_all(ConfigError, "--onnx", problems)
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(package) is None:
            raise MissingDependencyError(f"--onnx needs {package}: pip install 'distill-offline[onnx]'")


def write_onnx(student: TaskStudent, path: Path) -> float:
    """Writes the file, after checking that its outputs equal torch's for other batches and lengths than the traced one.

    Its inputs are ``ids1`` (and ``ids2``), int64 [batch, length], padded at the end with the student's ``pad_id``. Its
    output is ``logits``, float32 [batch, logits], or [batch, length, logits] for a student that labels words. The
    student's ``config.json`` is in its metadata under ``distill``.

    Args:
        student: in evaluation mode, on the CPU.
        path: the file.

    Returns:
        The largest absolute difference of a logit.

    Raises:
        ConfigError, MissingDependencyError: see `check_exportable`.
        IntegrityError: if the file's outputs differ from the student's.
    """
    check_exportable(student)
    import onnxruntime

    differences = []

    def write(temporary: Path) -> None:
        _export(student, temporary)
        session = onnxruntime.InferenceSession(temporary, providers=["CPUExecutionProvider"])
        differences.append(_difference(student, session))

    write_alone(path, write)
    return differences[0]


def _export(student: TaskStudent, path: Path) -> None:
    names = [f"ids{number + 1}" for number in range(student.config.num_sequences)]
    graph: nn.Module
    if isinstance(student, TokenLabelStudent):
        graph = TokenGraph(student)
    else:
        assert isinstance(student, Student), "there is no other kind"
        graph = Graph(student)
    batch = torch.export.Dim("batch")
    shapes = {
        name: {0: batch, 1: torch.export.Dim(f"length{name[-1]}", max=student.config.max_seq_length)} for name in names
    }
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # warns that torchvision is missing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of torch about its own code
        program = torch.onnx.export(
            graph.eval(),
            _random_ids(student, EXAMPLE_SHAPE[0], min(EXAMPLE_SHAPE[1], student.config.max_seq_length)),
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=names,
            output_names=["logits"],
            verbose=False,
        )
    assert program is not None
    for node in program.model.graph:  # onnxruntime warns because torch gives different lengths the same name
        for value in node.outputs:
            if value not in program.model.graph.outputs:
                value.shape = None
    program.model.metadata_props["distill"] = student.config.model_dump_json()
    program.save(path)


@torch.inference_mode()
def _difference(student: TaskStudent, session: "onnxruntime.InferenceSession") -> float:
    longest, pad_id = student.config.max_seq_length, student.config.pad_id
    worst = 0.0
    for batch_size in CHECKED_BATCHES:
        for length in sorted({1, 2, min(13, longest), longest}):
            ids = _random_ids(student, batch_size, length)
            # Which numbers of the file's outputs correspond to torch's: not those of padding, where words are labelled.
            is_compared: Any = ...
            if isinstance(student, TokenLabelStudent):
                is_compared = (ids[0] != pad_id).numpy()
                expected_BC = student(*without_padding(ids[0], pad_id)).numpy()
            else:
                expected_BC = student(*ids).numpy()
            inputs = {value.name: part.numpy() for value, part in zip(session.get_inputs(), ids, strict=True)}
            (logits_BC,) = session.run(None, inputs)
            difference = float(np.abs(logits_BC[is_compared] - expected_BC).max())
            if not difference <= TOLERANCE * max(1.0, float(np.abs(expected_BC).max())):
                shape = f"{batch_size} inputs of {length} tokens"
                raise IntegrityError(f"--onnx: differs from torch by {difference} for {shape}. Nothing was written")
            worst = max(worst, difference)
    return worst


def _random_ids(student: TaskStudent, batch_size: int, length: int) -> tuple[torch.Tensor, ...]:
    """Returns random ids of this length, and of another length for second sentences.

    One of several rows is shorter and padded.
    """
    random = torch.Generator().manual_seed(length)
    vocabulary, pad_id = student.config.vocabulary_size, student.config.pad_id
    parts = []
    for size in (length, max(1, length - 1))[: student.config.num_sequences]:
        ids_BL = torch.randint(vocabulary, (batch_size, size), generator=random)
        ids_BL = torch.where(ids_BL == pad_id, (pad_id + 1) % vocabulary, ids_BL)
        if batch_size > 1:
            ids_BL[0, (size + 1) // 2 :] = pad_id
        parts.append(ids_BL)
    return tuple(parts)

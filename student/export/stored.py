"""The student that a file of the engine holds, in torch: its rounded numbers are measured like those of any other.

Shapes: V vocabulary, R rows of W numbers, K vectors of E numbers, H outputs and F inputs of a layer.
"""

from typing import TypeVar

import torch
from torch import Tensor, nn

from student.encoders.aligned import AlignedEncoder
from student.encoders.matrices import MatrixEncoder, matrix_encoder
from student.encoders.recurrent import RecurrentEncoder
from student.export.engine_file import group_sizes, head_layers
from student.export.int8_rounding import Tensors
from student.model.student import TaskStudent

T = TypeVar("T", bound=TaskStudent)


@torch.no_grad()
def stored_student(student: T, tensors: Tensors) -> T:
    """Returns a student with the numbers of a file, in float32.

    Args:
        student: the one that was written.
        tensors: those of its file, where it is the first or the only one.
    """
    made = type(student)(student.config.model_copy(update={"table_dtype": "float32"})).eval()
    made.head.load_state_dict(student.head.state_dict())
    if isinstance(student.encoder, AlignedEncoder):
        made.encoder.load_state_dict(student.encoder.state_dict())
        _set_comparisons(made.encoder, tensors)
    elif isinstance(made.encoder, RecurrentEncoder):
        made.encoder.load_state_dict(student.encoder.state_dict())
        made.encoder.vectors.trained.weight.copy_(_rows(tensors)[tensors["row_of_token"].long()])
    else:
        _set_tables(matrix_encoder(made.encoder), matrix_encoder(student.encoder), tensors)
    hidden = head_layers(made.head).hidden
    if hidden is not None:
        hidden.weight.copy_(_layer(tensors, "0.hidden", group_sizes(made, hidden.in_features)))
    return made


def _set_comparisons(encoder: nn.Module, tensors: Tensors) -> None:
    assert isinstance(encoder, AlignedEncoder)
    offset_R = tensors.get("rows.offset", torch.zeros(len(tensors["rows"])))
    rows_VE = (_rows(tensors) + offset_R[:, None])[tensors["row_of_token"].long()]
    encoder.vectors.trained.weight.copy_(rows_VE * tensors["norm"][0] + tensors["norm"][1])
    encoder.norm = nn.Identity()  # type: ignore[assignment]  # stored rows are normalised
    encoder.compare.weight.copy_(_layer(tensors, "compare", 4 * [encoder.vectors.size]))


def _set_tables(encoder: MatrixEncoder, written: MatrixEncoder, tensors: Tensors) -> None:
    row_V = tensors["row_of_token"].long()
    begin, is_whole = 0, tensors["rows"].dtype == torch.float32
    for number, part in enumerate(encoder.parts()):
        weight_VW = part.table.weight
        neutral_W = weight_VW[encoder.pad_id].clone()
        rows_RW = _rows(tensors, number)[:, begin : begin + weight_VW.shape[1]]
        rows_RW = rows_RW if is_whole else neutral_W + rows_RW
        if "vectors" in tensors:
            apart_KW = neutral_W if begin else _vectors(tensors) + (0 if is_whole else neutral_W)
            rows_RW = torch.cat([rows_RW, apart_KW.expand(len(tensors["vectors"]), -1)])
        weight_VW.copy_(rows_RW[row_V])
        begin += weight_VW.shape[1]
    if encoder.bigrams is not None and written.bigrams is not None:
        vectors_KG = tensors["bigrams"].float() * tensors.get("bigrams.scale", torch.ones(1)).unsqueeze(1)
        encoder.bigrams.set_pairs(written.bigrams.pairs_K2)
        encoder.bigrams.take_over(written.bigrams.pairs_K2, vectors_KG)


def _rows(tensors: Tensors, part: int = 0) -> Tensor:
    """Returns stored rows [R, W]. With int8, only those of one part are right, since each has its scales."""
    rows_RW = tensors["rows"].float()
    return rows_RW * tensors["rows.scale"][:, part, None] if "rows.scale" in tensors else rows_RW


def _vectors(tensors: Tensors) -> Tensor:
    """Returns the vectors of tokens without matrices [K, E]."""
    vectors_KE = tensors["vectors"].float()
    return vectors_KE * tensors["vectors.scale"][:, None] if "vectors.scale" in tensors else vectors_KE


def _layer(tensors: Tensors, name: str, sizes: list[int]) -> Tensor:
    """Returns the weights of a layer [H, F], whose groups of inputs have these sizes."""
    weight_HF = tensors[name].float()
    if f"{name}.scale" not in tensors:
        return weight_HF
    return weight_HF * tensors[f"{name}.scale"].T.repeat_interleave(torch.tensor(sizes), dim=1)

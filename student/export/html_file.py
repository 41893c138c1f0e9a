"""A student as one HTML file that runs in a browser without a server: the engine, the student and the page.

`stored_student` is the student in the file, in torch: its rounded numbers are measured like those of any other.

Shapes: V vocabulary, R rows of W numbers, K vectors of E numbers, H outputs and F inputs of a layer.
"""

import json
import zlib
from base64 import b64encode
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from pipeline.files import write_text_alone
from student.encoders.aligned import AlignedEncoder
from student.encoders.matrices import MatrixEncoder, matrix_encoder
from student.encoders.recurrent import RecurrentEncoder
from student.export.engine_file import group_sizes, head_layers
from student.export.int8_rounding import Tensors
from student.model.student import TaskStudent
from student.page import compose, hashes

T = TypeVar("T", bound=TaskStudent)
FOOTER = "Texts stay on this page: it sends no requests, and its content security policy forbids them."
CHARSET = '<meta charset="utf-8">\n'
CHUNK_BYTES = 2**16
STRATEGIES = (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE)
ZLIB_START, LAST_BLOCK = b"\x78\xda", b"\x03\x00"


def write_html(content: bytes, name: str, path: Path, text_columns: Sequence[Sequence[str]] = ()) -> None:
    """Writes the file.

    Args:
        content: the student's file for the engine, with one task.
        name: the student's name in the page.
        path: the file.
        text_columns: the names that the column of each text may have in a file that is dropped on the page.
    """
    # The page is no module, because programs take the function that opens a student out of it.
    student = _file("engine", "node/student.js").replace("export class Student", "class Student")
    engine = b64encode(compressed(files("student.engine").joinpath("node/engine.wasm").read_bytes())).decode()
    api = _file("export", "open_student.js").replace("{{ student }}", student).replace("{{ engine }}", engine)
    facts = json.dumps({"name": name, "textColumns": [list(names) for names in text_columns]}).replace("<", "\\u003c")
    data = f'<script id="api">{api}</script>\n'
    data += f'<script id="facts" type="application/json">{facts}</script>\n'
    data += f'<script id="student" type="text/plain">{b64encode(compressed(content)).decode()}</script>\n'
    html = compose("distill export", _file("export", "local.js"), FOOTER, data)
    # The policy allows only the scripts of this file and no request, so texts cannot leave the page.
    policy = {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": hashes(html, "style"),
        "script-src": f"{hashes(html, 'script')} 'wasm-unsafe-eval'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    text = "; ".join(f"{part} {value}" for part, value in policy.items())
    tag = f'<meta http-equiv="Content-Security-Policy" content="{text}">\n'
    # The policy must stand before the first script, and browsers want the character set first of all.
    write_text_alone(path, html.replace(CHARSET, CHARSET + tag, 1))


def compressed(content: bytes) -> bytes:
    """Returns a zlib stream, which browsers decompress by themselves.

    Rounded numbers have few values in no order. Searching them for repetitions makes the stream longer, so each chunk
    is compressed in the way that suits it best.
    """
    chunks = [content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)]

    def blocks(chunk: bytes, strategy: int) -> bytes:
        # Raw blocks that end at a whole byte, so they can follow each other.
        stream = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)
        return stream.compress(chunk) + stream.flush(zlib.Z_FULL_FLUSH)

    shortest = [min((blocks(chunk, strategy) for strategy in STRATEGIES), key=len) for chunk in chunks]
    return b"".join([ZLIB_START, *shortest, LAST_BLOCK, zlib.adler32(content).to_bytes(4, "big")])


def _file(folder: str, name: str) -> str:
    return files(f"student.{folder}").joinpath(name).read_text(encoding="utf-8").rstrip("\n")


@torch.no_grad()
def stored_student(student: T, tensors: Tensors) -> T:
    """Returns a student with the numbers of a file, in float32.

    Args:
        student: the one that was written.
        tensors: those of its file, where it is the first or the only one.
    """
    made = type(student)(student.config.model_copy(update={"table_dtype": "float32"})).eval()
    made.head.load_state_dict(student.head.state_dict())
    made.ngrams = student.ngrams
    if isinstance(student.encoder, AlignedEncoder):
        assert isinstance(made.encoder, AlignedEncoder)
        made.encoder.load_state_dict(student.encoder.state_dict())
        offset_R = tensors.get("rows.offset", torch.zeros(len(tensors["rows"])))
        rows_VE = (_rows(tensors) + offset_R[:, None])[tensors["row_of_token"].long()]
        made.encoder.vectors.trained.weight.copy_(rows_VE * tensors["norm"][0] + tensors["norm"][1])
        made.encoder.norm = nn.Identity()  # type: ignore[assignment]  # stored rows are normalised
        made.encoder.compare.weight.copy_(_layer(tensors, "compare", 4 * [made.encoder.vectors.size]))
    elif isinstance(made.encoder, RecurrentEncoder):
        made.encoder.load_state_dict(student.encoder.state_dict())
        made.encoder.vectors.trained.weight.copy_(_rows(tensors)[tensors["row_of_token"].long()])
    else:
        _set_tables(matrix_encoder(made.encoder), matrix_encoder(student.encoder), tensors)
    hidden = head_layers(made.head).hidden
    if hidden is not None:
        hidden.weight.copy_(_layer(tensors, "0.hidden", group_sizes(made, hidden.in_features)))
    return made


def _set_tables(encoder: MatrixEncoder, written: MatrixEncoder, tensors: Tensors) -> None:
    row_V = tensors["row_of_token"].long()
    begin, is_whole = 0, tensors["rows"].dtype == torch.float32
    # The vectors of tokens without matrices, of a file that stores them apart.
    vectors_KE = tensors["vectors"].float() if "vectors" in tensors else None
    if vectors_KE is not None and "vectors.scale" in tensors:
        vectors_KE = vectors_KE * tensors["vectors.scale"][:, None]
    for number, part in enumerate(encoder.parts()):
        weight_VW = part.table.weight
        neutral_W = weight_VW[encoder.pad_id].clone()
        rows_RW = _rows(tensors, number)[:, begin : begin + weight_VW.shape[1]]
        rows_RW = rows_RW if is_whole else neutral_W + rows_RW
        if vectors_KE is not None:
            apart_KW = neutral_W if begin else vectors_KE + (0 if is_whole else neutral_W)
            rows_RW = torch.cat([rows_RW, apart_KW.expand(len(vectors_KE), -1)])
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


def _layer(tensors: Tensors, name: str, sizes: list[int]) -> Tensor:
    """Returns the weights of a layer [H, F], whose groups of inputs have these sizes."""
    weight_HF = tensors[name].float()
    if f"{name}.scale" not in tensors:
        return weight_HF
    return weight_HF * tensors[f"{name}.scale"].T.repeat_interleave(torch.tensor(sizes), dim=1)

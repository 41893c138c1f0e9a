"""A student as one HTML file: a page that answers by itself, and what programs in JavaScript need."""

import json
import zlib
from base64 import b64encode
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save
from tokenizers import Tokenizer

from pipeline.arrays import Ints
from pipeline.errors import ConfigError, raise_all
from pipeline.files import write_text_alone
from student.export.coarse import MLP_WEIGHT, CoarseStudent, Packed
from student.export.words import tokenizer_problems, words
from student.model.architecture import StudentConfig
from student.model.embeddings import matrix_encoder
from student.model.model import Student
from student.model.pairings import PAIRINGS
from student.page.compose import compose, hashes

HEADS_WRITTEN = ("linear", "mlp")
NAMES = {"vectors": "vectors", "forward_matrices": "forward", "backward_matrices": "backward"}  # in student.js
BIGRAMS = "bigrams"
FOOTER = "Texts stay on this page: it asks nobody anything, and its policy forbids it."
CHARSET = '<meta charset="utf-8">\n'


def check_writable(student: Student, tokenizer: Tokenizer) -> None:
    """Tells early what `write_html` could not do.

    Raises:
        ConfigError: if JavaScript could not compute the student's head or its windows, tell what its logits mean, or
            read text as its tokenizer does, or if a weight is not finite.
    """
    problems, head = tokenizer_problems(tokenizer), student.config.head
    if student.config.target.kind == "labels":
        problems.append("a student of several labels a text cannot be written")
    if student.config.window_size is not None:
        problems.append("a student that reads windows cannot be written")
    if head not in HEADS_WRITTEN:
        known = " or ".join(HEADS_WRITTEN)
        problems.append(f"a student with a {head} head cannot be written; train one with --head {known}")
    if not all(tensor.isfinite().all() for tensor in student.state_dict().values()):
        problems.append("the student's weights hold numbers that are not finite")
    raise_all(ConfigError, "--html", problems)


def write_html(coarse: CoarseStudent, tokenizer: Tokenizer, name: str, path: Path) -> None:
    """Writes the file.

    Args:
        coarse: the student, which `check_writable` let through.
        tokenizer: the student's.
        name: what the page calls it.
        path: the file.
    """
    content = b64encode(zlib.compress(_content(coarse, tokenizer, name), 9)).decode()
    api = f'<script id="api">{_file("student.js")}</script>\n'
    data = f'<script id="student" type="text/plain">{content}</script>\n'
    html = compose("distill export", _file("local.js"), FOOTER, api + data)
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
    write_text_alone(path, html.replace(CHARSET, CHARSET + tag, 1))


def _content(coarse: CoarseStudent, tokenizer: Tokenizer, name: str) -> bytes:
    """A safetensors file: numbers, the compiled kernel, and in its metadata what else `student.js` reads."""
    config = coarse.student.config
    tables = {NAMES[part]: _with_neutral_row(table) for part, table in coarse.tables.items()}
    others = {MLP_WEIGHT: coarse.mlp, BIGRAMS: coarse.bigrams}
    packed = tables | {key: part for key, part in others.items() if part is not None}
    tensors = {key: value.numpy() for key, value in coarse.student.head.state_dict().items() if key not in packed}
    for key, part in packed.items():
        tensors |= {key: part.nibbles(), f"{key}.step": part.step_R, f"{key}.neutral": part.neutral_F}
    if coarse.bigrams is not None:
        tensors[f"{BIGRAMS}.rows"] = _bigram_rows(coarse)
    tensors["kernel"] = np.frombuffer(files("student.export").joinpath("kernel.wasm").read_bytes(), np.uint8)
    student = {
        "facts": _facts(config, name),
        "shape": _shape(coarse, tokenizer),
        "words": words(tokenizer, coarse.ids_R, config.pad_id),
        "packed": [
            {"name": key, "rows": len(part.step_R), "width": len(part.neutral_F)} for key, part in packed.items()
        ],
    }
    content: bytes = save(tensors, {"student": json.dumps(student, ensure_ascii=False, separators=(",", ":"))})
    return content


def _facts(config: StudentConfig, name: str) -> dict[str, Any]:
    """What `student.js` tells of the student."""
    target = config.target
    return {
        "name": name,
        "task": config.task,
        "labels": list(target.names) if target.kind == "classes" else [],
        "bins": list(target.bins.values) if target.bins else None,
        "isPair": config.is_pair,
    }


def _shape(coarse: CoarseStudent, tokenizer: Tokenizer) -> dict[str, Any]:
    config, row_V = coarse.student.config, _row_of_tokens(coarse)
    specials = tokenizer.num_special_tokens_to_add(config.is_pair)
    return {
        "vectorSize": config.vector_size,
        "withMax": config.pooling == "sum+max",
        "side": config.matrix_size,
        "size": coarse.student.encoder.size,
        "features": coarse.student.num_features,
        "compare": config.pairing if config.is_pair and PAIRINGS[config.pairing].compare else None,
        "special": [row_V[np.array(ids, np.int64)].tolist() for ids in config.special_ids or ()]
        if config.is_joint
        else None,
        "room": max(0, config.max_seq_length - specials),
        "longest": config.max_seq_length + specials,
        "isMlp": config.head == "mlp",
        "hidden": config.hidden_size or 0,
        "labels": config.target.num_logits,
    }


def _row_of_tokens(coarse: CoarseStudent) -> Ints:
    """The row of each token, int32 [V], counted from 1 as the page does; 0 of a token without one."""
    row_V: Ints = np.zeros(coarse.student.config.num_tokens, np.int32)
    row_V[coarse.ids_R] = np.arange(1, len(coarse.ids_R) + 1)
    return row_V


def _bigram_rows(coarse: CoarseStudent) -> Ints:
    """The rows of the tokens of each pair, int32 [K, 2]."""
    bigrams = matrix_encoder(coarse.student.encoder).bigrams
    assert bigrams is not None, "the student has packed ones"
    rows_K2: Ints = _row_of_tokens(coarse)[bigrams.pairs_K2.numpy()]
    return rows_K2


def _with_neutral_row(table: Packed) -> Packed:
    """The table with a row 0, which tokens without a row of their own share."""
    numbers_RF = np.pad(table.numbers_RF, ((1, 0), (0, 0)))
    return Packed(numbers_RF, np.pad(table.step_R, (1, 0), constant_values=1), table.neutral_F)


def _file(name: str) -> str:
    return files("student.export").joinpath(name).read_text(encoding="utf-8").rstrip("\n")

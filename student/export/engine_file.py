"""Students as one safetensors file that `student/engine` reads: tables, heads, tokenizer and configuration.

Students of several tasks share an encoder, and the file has one head per task.

Tokens without their own row share the row of the padding. Tables of fewer bits store differences from the neutral row.
Weights that were rounded for the disk fit into int8 as they are, which needs a quarter of the memory of float32.
A LayerNorm's weights become part of the next layer.

Shapes: R rows, V tokens, W numbers of a row, H hidden numbers, C logits, F features, K bigrams, P pieces.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save
from tokenizers import Tokenizer
from torch import Tensor, nn

from pipeline.errors import ConfigError, raise_all
from pipeline.files import make_folder, write_atomically
from pipeline.training.run_record import stored_thresholds, text_columns
from student.encoders.aligned import AlignedEncoder
from student.encoders.matrices import MatrixEncoder, MatrixProduct, matrix_encoder
from student.encoders.recurrent import RecurrentEncoder
from student.export.engine_tokenizer import (
    tokenizer_problems,
    tokenizer_settings,
    tokenizer_tensors,
    tokens_across_words,
)
from student.export.int8_rounding import Rounding, Tensors, is_exact
from student.model.architecture import StudentConfig, TaskConfig, TokenLabelConfig
from student.model.heads import is_equal, share_hidden_layers
from student.model.student import Student, TaskStudent, TokenLabelStudent
from student.predict.certificate import CertifiedMargin, file_hashes, margin_for_file
from student.predict.labels import label_bias
from student.predict.student_info import FILE_INFOS, INFO, FileInfo
from student.run_settings import FileTableDtype, HeadDtype

FORMAT_VERSION = 1  # of the files that the engine reads
METADATA = "distill_student"
HEADS_WRITTEN = ("mlp", "plain-mlp", "linear", "dense")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
LARGEST_SIDE, LARGEST_WIDTH = 64, 2**16  # that the engine reads


class Layers(NamedTuple):
    """A head as the engine computes it.

    Attributes:
        hidden: the hidden layer with a ReLU, or None.
        normalises: whether a LayerNorm precedes the last layer.
        weight_CH: the weights of the last layer.
        bias_C: its bias.
    """

    hidden: nn.Linear | None
    normalises: bool
    weight_CH: Tensor
    bias_C: Tensor


class Part(NamedTuple):
    """One table of several side by side: its rows, and the row of tokens without their own."""

    rows_RF: Tensor
    neutral_F: Tensor
    is_matrix: bool = False


def engine_problems(student: TaskStudent, tokenizer: Tokenizer) -> list[str]:
    """Returns why a student cannot be written, with a suitable export."""
    config = student.config
    if not isinstance(student, Student | TokenLabelStudent):
        return [f"students of {config.rows} are not supported"]
    if not isinstance(student.encoder, MatrixEncoder | AlignedEncoder | RecurrentEncoder):
        return [f"students with --embedding {config.embedding} are not supported. Use --onnx"]
    found = tokenizer_problems(tokenizer)
    if not found and isinstance(student, TokenLabelStudent):
        found = tokens_across_words(tokenizer)
    problems = [f"{problem}. --onnx supports any tokenizer" for problem in found]
    if config.head not in HEADS_WRITTEN:
        other = "distill serve" if config.head == "bilstm" else "--onnx"
        problems.append(f"students with a {config.head} head are not supported. Use {other}")
    numbers = [tensor for tensor in student.state_dict().values() if tensor.is_floating_point()]
    # A sum is read from memory once. In float64, no sum of finite numbers overflows.
    if not all(tensor.sum(dtype=torch.float64).isfinite() for tensor in numbers):
        problems.append("the student's weights contain numbers that are not finite")
    if config.matrix_size > LARGEST_SIDE:
        problems.append(f"matrices of {config.matrix_size} x {config.matrix_size} are larger than {LARGEST_SIDE}")
    if config.vector_size > LARGEST_WIDTH or (config.hidden_size or 0) > LARGEST_WIDTH:
        problems.append(f"vectors or the head are wider than {LARGEST_WIDTH:,}")
    return problems


def write_engine_file(
    placed: Mapping[str, tuple[TaskStudent, Path]],
    tokenizer: Tokenizer,
    path: Path,
    table_dtype: FileTableDtype | None = None,
    head_dtype: HeadDtype = "float32",
) -> None:
    """Writes the file, and makes its folder.

    Args:
        placed: the students by task, in evaluation mode and on the CPU, with the folder of each, which contains its
            thresholds, its certificate and the names of its columns. All of them have the encoder of the first one.
        tokenizer: the students'.
        path: the file.
        table_dtype: the type of the stored tables. None: int8 if it holds the same numbers, else float32.
        head_dtype: the type of the heads' largest layer in the file, and of the layer that compares aligned tokens.

    Raises:
        ConfigError: if the engine does not support a student, or a number is too large for its dtype.
    """
    problems = [problem for student, _ in placed.values() for problem in engine_problems(student, tokenizer)]
    raise_all(ConfigError, "--file", list(dict.fromkeys(problems)))
    make_folder(path.parent)
    is_unrounded = table_dtype in (None, "float32") and head_dtype == "float32"
    certified = {task: margin_for_file(run, is_unrounded) for task, (_, run) in placed.items()}
    content = save(*engine_tensors(placed, tokenizer, table_dtype, head_dtype, Rounding(), certified))
    # Safetensors writes its metadata in any order, and a file must have the same bytes each time.
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors are aligned
    content = len(header).to_bytes(8, "little") + header + content[end:]
    write_atomically(path, partial(Path.write_bytes, data=content))


def engine_content(students: Mapping[str, TaskStudent], tokenizer: Tokenizer) -> bytes:
    """Returns a file's content with unchanged numbers, from which the engine computes logits and vectors.

    Thresholds and costs, which change labels alone, are not in it.

    Args:
        students: as of `write_engine_file`, without `engine_problems`.
        tokenizer: the students'.
    """
    placed = {task: (student, None) for task, student in students.items()}
    return save(*engine_tensors(placed, tokenizer, None, "float32", Rounding()))


def engine_tensors(
    placed: Mapping[str, tuple[TaskStudent, Path | None]],
    tokenizer: Tokenizer,
    table_dtype: FileTableDtype | None,
    head_dtype: HeadDtype,
    rounding: Rounding,
    certified: Mapping[str, CertifiedMargin | None] = MappingProxyType({}),
) -> tuple[Tensors, dict[str, str]]:
    """Returns the tensors of the file and its metadata.

    Args:
        placed: students without `engine_problems`, and their folders. None: without what is only in a folder.
        tokenizer: the students'.
        table_dtype: the type of the stored tables, or None. See `write_engine_file`.
        head_dtype: the type of the large layers.
        rounding: how numbers become int8.
        certified: the margins of certificates, by task.
    """
    one, _ = next(iter(placed.values()))
    assert {student.config.max_seq_length for student, _ in placed.values()} == {one.config.max_seq_length}
    with torch.no_grad():
        tensors = _encoder(one, table_dtype, head_dtype, rounding)
        # Each was loaded from its own folder, with its own copy of what they share.
        share_hidden_layers([student.head for student, _ in placed.values()], is_equal)
        layers = [_layers_of(student) for student, _ in placed.values()]
        # For each head the number of the first one with its hidden layer, normalised alike.
        keys = [(k if head.hidden is None else head.hidden, head.normalises) for k, head in enumerate(layers)]
        hidden_of = [keys.index(key) for key in keys]
        for number, (name, own_layers) in enumerate(zip(placed, layers, strict=True)):
            (student, run), margin = placed[name], certified.get(name)
            own = {"out": own_layers.weight_CH.clone(), "out.bias": own_layers.bias_C.clone()} | _answers(student, run)
            own |= {} if student.ngrams is None else student.ngrams.file_tensors()
            own |= {} if margin is None else {"margin": torch.tensor([margin.threshold], dtype=torch.float32)}
            if own_layers.hidden is not None and hidden_of[number] == number:
                hidden = own_layers.hidden
                sizes = group_sizes(student, hidden.in_features)
                own |= _layer("hidden", hidden.weight, head_dtype, sizes, rounding) | {"hidden.bias": hidden.bias}
            tensors |= {f"{number}.{name}": tensor for name, tensor in own.items()}
    tensors |= tokenizer_tensors(tokenizer)
    configs = {name: student.config for name, (student, _) in placed.items()}
    tasks = [_task(*each) for each in zip(configs, configs.values(), layers, hidden_of, strict=True)]
    settings = _settings(one, tokenizer, list(configs.values()), tasks)
    infos = _infos(placed, tokenizer, certified)
    return tensors, {METADATA: json.dumps(settings, ensure_ascii=False), INFO: FILE_INFOS.dump_json(infos).decode()}


def _infos(
    placed: Mapping[str, tuple[TaskStudent, Path | None]],
    tokenizer: Tokenizer,
    certified: Mapping[str, CertifiedMargin | None],
) -> list[FileInfo]:
    """Returns what the engine does not read, by task."""
    return [
        FileInfo.of(
            student.config,
            isinstance(student, TokenLabelStudent),
            name=name,
            num_special_tokens=tokenizer.num_special_tokens_to_add(student.config.is_pair),
            text_columns=None if run is None else text_columns(run),
            thresholds={} if run is None or not student.config.target.has_label_lists else stored_thresholds(run),
            certificate=certified.get(name),
            made_from={} if run is None else file_hashes(run),
        )
        for name, (student, run) in placed.items()
    ]


def _layers_of(student: TaskStudent) -> Layers:
    """Returns the layers of a student's head. The last one has the factor of logits beside those of n-grams."""
    layers, part = head_layers(student.head), student.ngrams
    if part is None:
        return layers
    return layers._replace(weight_CH=layers.weight_CH * part.network, bias_C=layers.bias_C * part.network)


def head_layers(head: nn.Module) -> Layers:
    """Returns the layers of a head of `HEADS_WRITTEN`, with the LayerNorm's weights multiplied into the last one."""
    layers = [head] if isinstance(head, nn.Linear) else list(head.children())
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    norm = next((layer for layer in layers if isinstance(layer, nn.LayerNorm)), None)
    last, hidden = linear[-1], linear[0] if len(linear) == 2 else None
    if norm is None:
        return Layers(hidden, False, last.weight, last.bias)
    weight_CH, bias_H = last.weight.double(), norm.bias.double()
    bias_C = last.bias.double() + weight_CH @ bias_H
    return Layers(hidden, True, (weight_CH * norm.weight.double()).float(), bias_C.float())


def _encoder(
    student: TaskStudent, table_dtype: FileTableDtype | None, layer_dtype: HeadDtype, rounding: Rounding
) -> Tensors:
    encoder = student.encoder
    if not isinstance(encoder, AlignedEncoder | RecurrentEncoder):
        return _matrix_tables(student, table_dtype, rounding)
    # All of them, also where a rounding keeps fewer: without its vector, a token is not even aligned with itself, and
    # still changes a state.
    token_R = encoder.used_ids()
    if isinstance(encoder, RecurrentEncoder):
        weight_RE, layers = encoder.vectors.trained.weight[token_R], (encoder.gate, encoder.value)
        return {
            **_row_of_token(student.config, token_R),
            "norm": torch.stack([encoder.norm.weight, encoder.norm.bias]),
            **_stored("rows", [Part(weight_RE, torch.zeros(1))], table_dtype, rounding, token_R),
            "steps": torch.cat([layer.weight for layer in layers]),
            "steps.bias": torch.cat([layer.bias for layer in layers]),
        }
    tensors = _row_of_token(student.config, token_R) | _aligned_rows(encoder, token_R, table_dtype, rounding)
    tensors |= _layer("compare", encoder.compare.weight, layer_dtype, [encoder.vectors.size] * 4, rounding)
    return tensors | {"compare.bias": encoder.compare.bias, "neighbours": encoder.neighbours}


def _aligned_rows(
    encoder: AlignedEncoder, token_R: Tensor, dtype: FileTableDtype | None, rounding: Rounding
) -> Tensors:
    """Returns normalised rows. The engine applies the factors and the bias of the LayerNorm, ``norm``, to them."""
    weight_RE, norm = encoder.vectors.trained.weight[token_R], encoder.norm
    var_R, mean_R = torch.var_mean(weight_RE.double(), dim=1, correction=0)
    per_deviation_R = (var_R + norm.eps).rsqrt()
    tensors = {"norm": torch.stack([norm.weight, norm.bias])}
    if dtype != "int8" and not (dtype is None and is_exact(weight_RE)):
        rows_RE = ((weight_RE - mean_R[:, None]) * per_deviation_R[:, None]).float()
        return tensors | _stored("rows", [Part(rows_RE, torch.zeros(1))], dtype or "float32", rounding)
    # Normalised rows are on no grid, but a power of two keeps the grid of the weights and makes all rows about as long.
    power_R = torch.exp2(per_deviation_R.log2().round())
    stored = _stored("rows", [Part(weight_RE * power_R[:, None].float(), torch.zeros(1))], "int8", rounding, token_R)
    stored["rows.scale"] = (stored["rows.scale"] * (per_deviation_R / power_R)[:, None]).float()
    return tensors | stored | {"rows.offset": (-mean_R * per_deviation_R).float()}


def _matrix_tables(student: TaskStudent, dtype: FileTableDtype | None, rounding: Rounding) -> Tensors:
    encoder, config = matrix_encoder(student.encoder), student.config
    used_R = encoder.used_ids() if encoder.rows is None else encoder.rows.token_R.long()
    token_R = rounding.kept(used_R, config.pad_id)
    rows = token_R if encoder.rows is None else encoder.rows(token_R)
    is_padding_R = token_R == config.pad_id
    parts = [
        Part(part.table(rows), part.table(rows[is_padding_R])[0], isinstance(part, MatrixProduct))
        for part in encoder.parts()
    ]
    order_R, num_whole = _whole_first(parts)
    token_R, parts = token_R[order_R], [part._replace(rows_RF=part.rows_RF[order_R]) for part in parts]
    stored = _stored("rows", parts, dtype, rounding, token_R)
    # Rows without matrices are vectors in a table of their own.
    if num_whole < len(stored["rows"]):
        apart = {name: tensor[:num_whole].contiguous() for name, tensor in stored.items()}
        apart["vectors"] = stored["rows"][num_whole:, : config.vector_size].contiguous()
        if "rows.scale" in stored:
            apart["vectors.scale"] = stored["rows.scale"][num_whole:, 0].contiguous()
        stored = apart
    tensors = _row_of_token(config, token_R) | stored
    if encoder.bigrams is not None:
        vectors_KG = encoder.bigrams.vectors()
        tensors |= {"bigrams.pairs": encoder.bigrams.pairs_K2.int()}
        tensors |= _stored("bigrams", [Part(vectors_KG, torch.zeros(1))], dtype, rounding)
        if "bigrams.scale" in tensors:
            tensors["bigrams.scale"] = tensors["bigrams.scale"].flatten()
    return tensors


def _whole_first(parts: Sequence[Part]) -> tuple[Tensor, int]:
    """Returns an order of rows [R] in which those with matrices come first, and how many these are.

    Tokens that were never trained have the identity, which nothing has to be multiplied with. Without vectors beside
    the matrices, all rows count as whole.
    """
    matrices = [part for part in parts if part.is_matrix]
    differs = [(part.rows_RF != part.neutral_F).any(dim=1) for part in matrices]
    if not matrices or len(matrices) == len(parts):
        differs = [torch.ones(len(parts[0].rows_RF), dtype=torch.bool)]
    is_whole_R = torch.stack(differs).any(dim=0)
    is_whole_R[0] = True  # a table has rows
    return torch.argsort(~is_whole_R, stable=True), int(is_whole_R.sum())


def _row_of_token(config: TaskConfig, token_R: Tensor) -> Tensors:
    row_V = torch.full((config.num_tokens,), int((token_R == config.pad_id).nonzero()), dtype=torch.int32)
    row_V[token_R] = torch.arange(len(token_R), dtype=torch.int32)
    return {"row_of_token": row_V}


def _stored(
    name: str, parts: list[Part], dtype: FileTableDtype | None, rounding: Rounding, token_R: Tensor | None = None
) -> Tensors:
    """Returns tables side by side. Types other than float32 store differences from the neutral row.

    ``dtype`` None is int8 if it holds the same numbers, else float32.
    """
    residuals = [part.rows_RF - part.neutral_F for part in parts]
    if dtype is None:
        dtype = "int8" if all(map(is_exact, residuals)) else "float32"
    if dtype == "float32":
        return {name: torch.cat([part.rows_RF for part in parts], dim=1)}
    if dtype != "int8":
        stored = torch.cat(residuals, dim=1).to(DTYPES[dtype])
        if not stored.isfinite().all():
            raise ConfigError(
                f"--table-dtype {dtype}: the tables contain numbers beyond its range. Use bfloat16 or int8."
            )
        return {name: stored}
    scale_PR = [
        rounding.rows(residual_RF, token_R, part.is_matrix) for part, residual_RF in zip(parts, residuals, strict=True)
    ]
    return {name: _int8(residuals, scale_PR), f"{name}.scale": torch.stack(scale_PR, dim=1)}


def _int8(parts: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
    """Returns parts of rows side by side, divided by the scale of each row and part."""
    divided = [part / scale.unsqueeze(1) for part, scale in zip(parts, scales, strict=True)]
    return torch.cat(divided, dim=1).round().to(torch.int8)


def _layer(name: str, weight_HF: Tensor, dtype: HeadDtype, sizes: list[int], rounding: Rounding) -> Tensors:
    """Returns a layer. With int8, its weights have a scale for each group of inputs, whose sizes are given."""
    if dtype != "int8":
        return {name: weight_HF.to(DTYPES[dtype]).contiguous()}
    parts = torch.split(weight_HF, sizes, dim=1)
    scales = [rounding.layer(part) for part in parts]
    return {name: _int8(parts, scales), f"{name}.scale": torch.stack(scales)}


def group_sizes(student: TaskStudent, num_features: int) -> list[int]:
    """Returns the sizes of the parts of a head's inputs: int8 weights have a scale for each.

    Args:
        student: a student that is written.
        num_features: the number of the inputs: those of a text, or several times as many if two texts are combined, or
            those of a token.
    """
    encoder, config = student.encoder, student.config
    if isinstance(encoder, AlignedEncoder):
        return [encoder.compare.out_features] * (num_features // encoder.compare.out_features)
    if isinstance(encoder, RecurrentEncoder):
        return [*[encoder.vectors.size] * 2, *[encoder.state_size] * 6] * (num_features // encoder.size)
    encoder = matrix_encoder(encoder)
    matrices = [
        config.matrix_size**2 for part in (encoder.forward_matrices, encoder.backward_matrices) if part is not None
    ]
    sizes: list[int] = [config.vector_size, config.vector_size * encoder.with_max, *matrices]
    sizes = [size for size in (*sizes, 0 if encoder.bigrams is None else encoder.bigrams.size) if size]
    # A word's token has a vector and a matrix for each direction, and then the rows of itself and its neighbours.
    ways = max(1, len(matrices)) if isinstance(student, TokenLabelStudent) else 0
    of_token: list[int] = [size for size in (config.vector_size, *matrices[:1]) if size] * ways
    return of_token + sizes * ((num_features - sum(of_token)) // sum(sizes))


def _answers(student: TaskStudent, run: Path | None) -> Tensors:
    config, target = student.config, student.config.target
    if target.bins is not None:
        return {"bins": torch.tensor(target.bins.values, dtype=torch.float32)}
    if not target.has_labels:
        return {}
    fitted = config.calibration.temperature if config.calibration is not None else (1.0,)
    temperature_C = torch.tensor(fitted, dtype=torch.float32).expand(target.num_logits).contiguous()
    # Without a folder nobody asks for labels, but the engine opens no student of several labels without thresholds.
    no_bias_C = np.zeros(target.num_logits, np.float32) if target.has_label_lists else None
    bias_C = no_bias_C if run is None else label_bias(run, target, {})
    return {"temperature": temperature_C} | ({} if bias_C is None else {"bias": torch.from_numpy(bias_C)})


def _settings(
    one: TaskStudent, tokenizer: Tokenizer, configs: Sequence[TaskConfig], tasks: list[dict[str, Any]]
) -> dict[str, Any]:
    config, encoder = one.config, one.encoder
    is_matrix = isinstance(encoder, MatrixEncoder)
    pairs = next((own for own in configs if isinstance(own, StudentConfig) and own.is_pair), None)
    specials = pairs.special_ids if pairs is not None and pairs.is_joint and pairs.special_ids else ((), (), ())
    length = config.max_seq_length
    return {
        "format": FORMAT_VERSION,
        "tasks": tasks,
        "pairing": "none" if pairs is None else pairs.pairing,
        "num_tokens": config.num_tokens,
        "pad": config.pad_id,
        "max_tokens": length,
        "room_single": max(0, length - tokenizer.num_special_tokens_to_add(False)),
        "room_pair": max(0, length - tokenizer.num_special_tokens_to_add(True)),
        "window": (encoder.window_size or 0) if is_matrix else 0,
        **dict(zip(("before", "between", "after"), specials, strict=True)),
        "vector_size": config.vector_size,
        "side": config.matrix_size,
        "maxima": isinstance(encoder, RecurrentEncoder) or (is_matrix and encoder.with_max),
        "bidirectional": is_matrix and encoder.backward_matrices is not None,
        "bigram_size": encoder.bigrams.size if is_matrix and encoder.bigrams is not None else 0,
        "compared": encoder.compare.out_features if isinstance(encoder, AlignedEncoder) else 0,
        "tokenizer": tokenizer_settings(tokenizer),
    } | ({"state_size": encoder.state_size} if isinstance(encoder, RecurrentEncoder) else {})


def _task(name: str, config: TaskConfig, layers: Layers, hidden_of: int) -> dict[str, Any]:
    return {
        "task": name,
        "kind": "words" if isinstance(config, TokenLabelConfig) else config.target.kind,
        "labels": config.target.names,
        "is_pair": config.is_pair,
        "hidden": 0 if layers.hidden is None else layers.hidden.out_features,
        "hidden_of": hidden_of,
        "normalises": layers.normalises,
    }

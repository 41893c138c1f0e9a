"""Writes a student as one HTML file that runs in a browser without a server: rounded numbers, vocabulary, page.

Numbers are rounded as far as the accuracy allows: rows of rare tokens more than those of frequent ones. The page needs
the vocabulary to read texts like the tokenizer.

Shapes: R rows that are stored, V vocabulary, F numbers of a row, K bigrams.
"""

import json
import zlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save
from tokenizers import Tokenizer
from torch import Tensor

from pipeline.arrays import Floats, Ints
from pipeline.errors import ConfigError, raise_all
from pipeline.files import write_text_alone
from pipeline.text.wordpiece.compiled_wordpiece import apply_to_characters, is_compatible
from student.model.architecture import StudentConfig
from student.model.bigrams import BigramSums
from student.model.embeddings import matrix_encoder
from student.model.heads import PAIRINGS
from student.model.model import Student
from student.page.compose import compose, hashes

HEADS_WRITTEN = ("linear", "mlp")
# student.js looks its tables up by these names.
NAMES = {"vectors": "vectors", "forward_matrices": "forward", "backward_matrices": "backward"}
BIGRAMS = "bigrams"
FOOTER = "Texts stay on this page: it sends no requests, and its content security policy forbids them."
CHARSET = '<meta charset="utf-8">\n'
# Four bits hold -8 to 7. A symmetric range from -7 to 7 keeps zero exact.
LARGEST = 7
# docs/students.md lists what these steps cost in accuracy. Vectors need finer steps than matrices.
STEPS = {"vectors": 1.75, "forward_matrices": 3.25, "backward_matrices": 3.25}
BIGRAM_STEP = 1.75
MLP_STEP = 1.0
# The step grows with 1 / count to this power, so the rounding is finest where most texts are affected.
RARENESS = 0.25
MLP_WEIGHT = "0.weight"
# This character occurs in no piece, so a word that contains it becomes unknown.
BEYOND = "\uffff"
SURROGATES = range(0xD800, 0xE000)
PLANE = 0x10000
NUM_PLANES = 17
# Unicode has no characters in these planes, so one code point stands for the whole plane.
EMPTY_PLANES = range(4, 14)

Runs = list[tuple[int, str | None]]


@dataclass(frozen=True)
class Packed:
    """Rows of numbers that are ``neutral_F + step_R * numbers_RF``.

    Attributes:
        numbers_RF: int8, from -7 to 7.
        step_R: float32.
        neutral_F: float32.
    """

    numbers_RF: np.ndarray
    step_R: Floats
    neutral_F: Floats

    def values(self) -> Floats:
        """The rows, float32 [R, F]."""
        values_RF: Floats = self.neutral_F + self.step_R[:, None] * self.numbers_RF.astype(np.float32)
        return values_RF

    def nibbles(self) -> np.ndarray:
        """Returns two numbers per byte, uint8 [R, F / 2 rounded up]: the first one in the upper bits, and 8 for 0."""
        shifted_RF = (self.numbers_RF + (LARGEST + 1)).astype(np.uint8)
        if shifted_RF.shape[1] % 2:
            shifted_RF = np.pad(shifted_RF, ((0, 0), (0, 1)), constant_values=LARGEST + 1)
        nibbles: np.ndarray = shifted_RF[:, 0::2] << 4 | shifted_RF[:, 1::2]
        return nibbles


def packed(weight_RF: Floats, neutral_F: Floats, step: float, count_R: Ints | None = None) -> Packed:
    """Rounds rows to integers of four bits.

    Args:
        weight_RF: float32.
        neutral_F: float32, the row that zeros represent.
        step: the distance of two numbers in units of the root mean square deviation from the neutral row.
        count_R: the frequency of each row, at least 1. None: the same for all.
    """
    # Deviations from the neutral row are small and centred on 0, so four bits go much further.
    deviation_RF = weight_RF - neutral_F
    typical = float(np.sqrt(np.mean(np.square(deviation_RF, dtype=np.float64)))) or 1.0
    fineness_R = np.ones(len(weight_RF)) if count_R is None else count_R.astype(np.float64) ** RARENESS
    # Dividing by the geometric mean keeps the average step, and with it the file's size, independent of the counts.
    usual_R = step * typical * np.exp(np.log(fineness_R).mean()) / fineness_R
    # A row with a large number gets a wider step, because clipping would distort a product more than rounding.
    widest_R = np.maximum(usual_R, np.abs(deviation_RF).max(axis=1) / LARGEST)
    # A smaller step would round to 0 in float32, and then be a divisor.
    step_R = np.maximum(widest_R, np.finfo(np.float32).tiny).astype(np.float32)
    numbers_RF = np.rint(deviation_RF / step_R[:, None]).clip(-LARGEST, LARGEST).astype(np.int8)
    return Packed(numbers_RF, step_R, neutral_F)


@dataclass(frozen=True)
class CoarseStudent:
    """A student with coarse numbers, and these numbers.

    Attributes:
        student: predicts the same as the page.
        ids_R: the tokens with a row, ascending.
        tables: the tables of the existing parts, with a row per token of ``ids_R``.
        bigrams: the vectors of the student's pairs of tokens, or None without any.
        mlp: the MLP's first weights, or None for a linear head.
    """

    student: Student
    ids_R: Ints
    tables: dict[str, Packed]
    bigrams: Packed | None
    mlp: Packed | None


@torch.no_grad()
def coarse(student: Student, count_V: Ints | None) -> CoarseStudent:
    """Rounds a student for the page.

    Args:
        student: with tables of any kind, a linear or an MLP head, on the CPU.
        count_V: the count of each token in the training rows. None: keep all used rows and round them alike.
    """
    config, encoder = student.config, matrix_encoder(student.encoder)
    if count_V is None:
        ids_R = encoder.used_ids().numpy() if encoder.rows is None else encoder.rows.token_R.numpy().astype(np.int64)
    else:
        ids_R = np.flatnonzero(count_V)
    # The padding's row is the neutral one, which the page stores once as row 0.
    ids_R = ids_R[ids_R != config.pad_id]
    # Scores are measured on a real student with the rounded numbers, so they hold for the page, too.
    made = Student(config.model_copy(update={"table_dtype": "float32", "used_rows": len(ids_R) + 1})).eval()
    made.head.load_state_dict(student.head.state_dict())
    tables = {}
    for name, step in STEPS.items():
        part, made_part = getattr(encoder, name), getattr(made.encoder, name)
        if part is None:
            continue
        neutral_F, weight_RF = (
            _rows(student, part.table, np.array([config.pad_id]))[0],
            _rows(student, part.table, ids_R),
        )
        tables[name] = packed(weight_RF, neutral_F, step, None if count_V is None else count_V[ids_R])
        # Tokens without a row behave as in the page, where they read the neutral row.
        made_part.table.weight[:] = torch.from_numpy(neutral_F)
        made_part.table.weight[torch.from_numpy(ids_R)] = torch.from_numpy(tables[name].values())
    bigrams = None if encoder.bigrams is None else _coarse_bigrams(made, encoder.bigrams, ids_R)
    return CoarseStudent(made, ids_R, tables, bigrams, _coarse_mlp(made) if config.head == "mlp" else None)


def _coarse_bigrams(student: Student, bigrams: BigramSums, ids_R: Ints) -> Packed:
    """Returns coarse vectors of pairs and stores them in the student. A pair with a token without a row gets 0."""
    # The page finds a pair by the rows of its tokens, so both of them need one.
    is_known_K = torch.isin(bigrams.pairs_K2, torch.from_numpy(ids_R)).all(dim=1, keepdim=True)
    vectors_KG = torch.where(is_known_K, bigrams.vectors(), 0).numpy()
    rows = packed(vectors_KG, np.zeros(student.config.bigram_size, np.float32), BIGRAM_STEP)
    made = matrix_encoder(student.encoder).bigrams
    assert made is not None, "of the same configuration"
    made.set_pairs(bigrams.pairs_K2)
    made.take_over(bigrams.pairs_K2, torch.from_numpy(rows.values()))
    return rows


def _coarse_mlp(student: Student) -> Packed:
    weight: Tensor = student.head.state_dict()[MLP_WEIGHT]
    mlp = packed(weight.numpy(), np.zeros(weight.shape[1], np.float32), MLP_STEP)
    weight.copy_(torch.from_numpy(mlp.values()))
    return mlp


def _rows(student: Student, table: torch.nn.Module, ids_R: Ints) -> Floats:
    """Returns a table's rows of tokens, float32 [R, F]."""
    ids = torch.from_numpy(ids_R)
    index = matrix_encoder(student.encoder).rows
    rows_RF: Floats = table(ids if index is None else index(ids)).numpy()
    return rows_RF


def check_writable(student: Student, tokenizer: Tokenizer) -> None:
    """Checks early that `write_html` supports the student.

    Raises:
        ConfigError: if JavaScript could not compute the student's head or its windows, interpret its logits, or
            read text as its tokenizer does, or if a weight is not finite.
    """
    problems, head = tokenizer_problems(tokenizer), student.config.head
    if student.config.target.has_label_lists:
        problems.append("a student with several labels per text cannot be written")
    if student.config.window_size is not None:
        problems.append("a student that reads windows cannot be written")
    if head not in HEADS_WRITTEN:
        known = " or ".join(HEADS_WRITTEN)
        problems.append(f"a student with a {head} head cannot be written. Train one with --head {known}")
    if not all(tensor.isfinite().all() for tensor in student.state_dict().values()):
        problems.append("the student's weights contain numbers that are not finite")
    raise_all(ConfigError, "--html", problems)


def write_html(
    coarse: CoarseStudent, tokenizer: Tokenizer, name: str, path: Path, text_columns: Sequence[Sequence[str]] = ()
) -> None:
    """Writes the file.

    Args:
        coarse: the student, after `check_writable`.
        tokenizer: the student's.
        name: its name in the page.
        path: the file.
        text_columns: the names that the column of each text may have in a file that is dropped on the page.
    """
    # Browsers decompress zlib streams by themselves, so the page carries no decoder.
    content = b64encode(zlib.compress(_content(coarse, tokenizer, name, text_columns), 9)).decode()
    api = f'<script id="api">{_file("student.js")}</script>\n'
    data = f'<script id="student" type="text/plain">{content}</script>\n'
    html = compose("distill export", _file("local.js"), FOOTER, api + data)
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


def _content(coarse: CoarseStudent, tokenizer: Tokenizer, name: str, text_columns: Sequence[Sequence[str]]) -> bytes:
    """Returns a safetensors file with the numbers and the compiled kernel.

    Its metadata have the other input of `student.js`.
    """
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
        "facts": _facts(config, name) | {"textColumns": [list(names) for names in text_columns]},
        "shape": _shape(coarse, tokenizer),
        "words": words(tokenizer, coarse.ids_R, config.pad_id),
        "packed": [
            {"name": key, "rows": len(part.step_R), "width": len(part.neutral_F)} for key, part in packed.items()
        ],
    }
    # One safetensors file holds numbers and settings, so student.js needs a single parser.
    content: bytes = save(tensors, {"student": json.dumps(student, ensure_ascii=False, separators=(",", ":"))})
    return content


def _facts(config: StudentConfig, name: str) -> dict[str, Any]:
    """Returns the description of the student that `student.js` offers."""
    target = config.target
    return {
        "name": name,
        "task": config.task,
        "labels": list(target.names) if target.has_classes else [],
        "temperature": config.calibration.temperature[0] if config.calibration and target.has_classes else 1,
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
        # A row of the page also holds the special tokens of a joint student.
        "longest": config.max_seq_length + specials,
        "isMlp": config.head == "mlp",
        "hidden": config.hidden_size or 0,
        "labels": config.target.num_logits,
    }


def _row_of_tokens(coarse: CoarseStudent) -> Ints:
    """Returns the row of each token, int32 [V], counted from 1 as in the page. 0: the token has no row."""
    row_V: Ints = np.zeros(coarse.student.config.num_tokens, np.int32)
    # Row 0 is the neutral row, so tokens with numbers of their own start at 1.
    row_V[coarse.ids_R] = np.arange(1, len(coarse.ids_R) + 1)
    return row_V


def _bigram_rows(coarse: CoarseStudent) -> Ints:
    """Returns the rows of the tokens of each pair, int32 [K, 2]."""
    bigrams = matrix_encoder(coarse.student.encoder).bigrams
    assert bigrams is not None, "the student has packed bigrams"
    rows_K2: Ints = _row_of_tokens(coarse)[bigrams.pairs_K2.numpy()]
    return rows_K2


def _with_neutral_row(table: Packed) -> Packed:
    """Returns the table with a row 0 for all tokens without their own row."""
    numbers_RF = np.pad(table.numbers_RF, ((1, 0), (0, 0)))
    return Packed(numbers_RF, np.pad(table.step_R, (1, 0), constant_values=1), table.neutral_F)


def _file(name: str) -> str:
    return files("student.export").joinpath(name).read_text(encoding="utf-8").rstrip("\n")


def tokenizer_problems(tokenizer: Tokenizer) -> list[str]:
    """Returns the reasons why JavaScript cannot read text as this tokenizer does."""
    content = json.loads(tokenizer.to_str())
    if not is_compatible(content):
        return ["the tokenizer is not BERT's WordPiece, the only one that the page supports"]
    # The page searches added tokens as plain text, which these two settings would change.
    strange = [token["content"] for token in content["added_tokens"] if token["normalized"] or token["single_word"]]
    return [f"the tokenizer finds {name!r} in text by rules that the page does not support" for name in strange]


def words(tokenizer: Tokenizer, ids_R: Ints, pad_id: int) -> dict[str, Any]:
    """Returns the tokenizer for ``student.js``.

    Args:
        tokenizer: one without `tokenizer_problems`.
        ids_R: the tokens with a row. Token ``ids_R[k]`` has row k + 1.
        pad_id: the token that is left out.
    """
    content = json.loads(tokenizer.to_str())
    model = content["model"]
    row_of = {int(token): row for row, token in enumerate(ids_R, 1)} | {pad_id: -1}
    pieces = [tokenizer.id_to_token(int(token)) for token in ids_R]
    return {
        "pieces": pieces,
        # Pieces without a row are needed, too: WordPiece would otherwise split their words differently.
        "others": sorted(set(model["vocab"]) - set(pieces)),
        "added": [(token["content"], row_of.get(token["id"], 0)) for token in content["added_tokens"]],
        "characters": characters(tokenizer, set("".join(model["vocab"]))),
        "prefix": model["continuing_subword_prefix"],
        "unknown": model["unk_token"],
        "longest": model["max_input_chars_per_word"],
    }


def characters(tokenizer: Tokenizer, alphabet: set[str]) -> Runs:
    """Returns the normalised text of each character, with spaces around characters that are words of their own.

    Args:
        tokenizer: its normalizer and pre-tokenizer are applied to every character.
        alphabet: the characters of the pieces. All others are `BEYOND`.

    Returns: Ascending code points at which the text of the characters changes, with that text, or None for the
        character itself.
    """
    runs: Runs = []
    for plane in range(NUM_PLANES):
        codes = range(plane * PLANE, plane * PLANE + (1 if plane in EMPTY_PLANES else PLANE))
        # Half a surrogate pair is no text, and the library refuses it.
        asked = [chr(code) for code in codes if code not in SURROGATES]
        for character, answer in zip(asked, apply_to_characters(tokenizer, asked), strict=True):
            known = "".join(c if c in alphabet or c == " " else BEYOND for c in answer)
            normal = None if known == character else known
            if not runs or runs[-1][1] != normal:
                runs.append((ord(character), normal))
    return runs

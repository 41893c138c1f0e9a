"""The signals in the files of the rows: logits of texts and words, distributions at masked positions, vectors."""

from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrays import Floats
from pipeline.files import sha256
from pipeline.sets.codec_text import Pooling
from pipeline.sets.codecs import AnyCodec, Decoder
from pipeline.sets.codecs.codec import DECODER_FILE, read_decoder
from pipeline.sets.codecs.distributions import HiddenCodec
from pipeline.sets.codecs.vectors import BASIS_FILE, AnyVectorCodec, Basis, read_basis
from pipeline.sets.record_parts import Sha256
from pipeline.sets.signals.signal import Signal, own_file
from pipeline.tasks.target import Target
from pipeline.untrusted import code


class Logits(Signal):
    """Column ``logits``: a list of C numbers.

    Attributes:
        target: their meaning, with a name for each.
    """

    title: ClassVar[str] = "logits of a task"
    task_category: ClassVar[str] = "text-classification"
    each: ClassVar[str] = ""

    target: Target

    def __str__(self) -> str:
        return f"{self.target.num_logits} logits{self.each}"

    def columns(self) -> list[pa.Field]:
        return [pa.field("logits", pa.list_(pa.float32(), self.target.num_logits), nullable=False)]

    def card_lines(self) -> str:
        names = ", ".join(f"`{code(name)}`" for name in self.target.names).replace("|", "\\|")
        apart = ", each for its own sigmoid" if self.target.has_label_lists else ""
        each = " for each token" if self.each else ""
        return f"| `logits` | {self.target.num_logits} float32{each}, in this order: {names}{apart} |"

    def facts(self) -> dict[str, Any]:
        names = ", ".join(self.target.names)
        return {
            "logits": "the score itself" if self.target.is_score else f"{self.target.num_logits}{self.each}: {names}"
        }

    def problem(self, rows: pa.Table) -> str | None:
        # Nulls become NaN in numpy, but the message should distinguish the two.
        if rows.column("logits").null_count or rows.column("logits").combine_chunks().flatten().null_count:
            return "a logit is null"
        finite_R = np.isfinite(logits_of(rows, self.target.num_logits)).all(axis=1)
        if not finite_R.all():
            return f"logits of source row {rows.column('source_row')[int(np.flatnonzero(~finite_R)[0])]} are not finite"
        return None


def logits_of(table: pa.Table, num_logits: int) -> Floats:
    """Returns the logits column as an array [N, C] of float32."""
    flat = table.column("logits").combine_chunks().flatten()
    return np.array(flat.to_numpy(zero_copy_only=False), dtype=np.float32).reshape(-1, num_logits)


class TokenLogits(Logits):
    """Column ``logits``: a list of C numbers for each token, float32."""

    title: ClassVar[str] = "logits of words"
    task_category: ClassVar[str] = "token-classification"
    each: ClassVar[str] = " per token"

    def columns(self) -> list[pa.Field]:
        return [pa.field("logits", pa.list_(pa.list_(pa.float32(), self.target.num_logits)), nullable=False)]

    def problem(self, rows: pa.Table) -> str | None:
        column = rows.column("logits").combine_chunks()
        each = column.flatten()
        if column.null_count or each.null_count or each.flatten().null_count:
            return "a logit is null"
        # Losses pair logits and tokens by position, so a row with one more or fewer would shift all following rows.
        if not pc.list_value_length(column).equals(pc.list_value_length(rows.column("ids").combine_chunks())):
            return "a row has different numbers of logits and tokens"
        finite_T = np.isfinite(token_logits_of(rows, self.target.num_logits)).all(axis=1)
        if not finite_T.all():
            row = int(pc.list_parent_indices(column)[int(np.flatnonzero(~finite_T)[0])].as_py())
            return f"logits of source row {rows.column('source_row')[row]} are not finite"
        return None


def token_logits_of(table: pa.Table, num_logits: int) -> Floats:
    """Returns the logits of the tokens of all rows as an array [T, C] of float32."""
    flat = table.column("logits").combine_chunks().flatten().flatten()
    return np.array(flat.to_numpy(zero_copy_only=False), dtype=np.float32).reshape(-1, num_logits)


# The size limit of a download is the bytes of the numbers plus this allowance for the safetensors header.
HEADER_BYTES = 2**20


class Mlm(Signal):
    """The codec's columns: lists with an entry for each masked position.

    Attributes:
        codec: how distributions are stored.
        decoder_sha256: hash of the file ``decoder.safetensors``, for a codec that needs one.
    """

    title: ClassVar[str] = "predictions of a masked language model"
    task_category: ClassVar[str] = "fill-mask"

    codec: AnyCodec
    decoder_sha256: Sha256 | None = None

    def __str__(self) -> str:
        return f"codec {str(self.codec)!r}"

    def columns(self) -> list[pa.Field]:
        return self.codec.columns()

    def card_lines(self) -> str:
        return self.codec.card_line

    def facts(self) -> dict[str, Any]:
        return {"codec": str(self.codec)}

    def problem(self, rows: pa.Table) -> str | None:
        return self.codec.problem({name: rows.column(name).combine_chunks().flatten() for name in self.codec.fields()})

    def files(self) -> dict[str, int]:
        if not isinstance(self.codec, HiddenCodec):
            return {}
        # Weights and biases in float32.
        size = 4 * self.codec.vocabulary_size * (self.codec.hidden_size + 1)
        return {DECODER_FILE: size + HEADER_BYTES}

    def hashes(self) -> dict[str, str]:
        return {DECODER_FILE: self.decoder_sha256} if self.decoder_sha256 else {}

    def check_files(self, root: Path) -> None:
        self.read_decoder(root)

    def measured(self, root: Path) -> Self:
        if not self.codec.needs_decoder:
            return self
        return self.model_copy(update={"decoder_sha256": sha256(root / DECODER_FILE)})

    def read_decoder(self, root: Path) -> Decoder | None:
        """Reads the teacher's last layer from the set in ``root``, if the codec needs it.

        Raises:
            IntegrityError: if the file is missing or was changed, or is not a decoder.
        """
        if not isinstance(self.codec, HiddenCodec):
            return None
        path = own_file(root, DECODER_FILE, self.decoder_sha256, "decoder")
        return read_decoder(path, self.codec.vocabulary_size, self.codec.hidden_size)


HEADER_BYTES = 2**20


class Vectors(Signal):
    """The codec's columns, one entry per sentence.

    Attributes:
        codec: the codec of the vectors.
        pooling: the mean of the tokens' states, or the first state.
        basis_sha256: hash of the file ``basis.safetensors``, for a codec that needs one.
    """

    title: ClassVar[str] = "vectors of sentences"
    task_category: ClassVar[str] = "feature-extraction"

    codec: AnyVectorCodec
    pooling: Pooling
    basis_sha256: Sha256 | None = None

    def __str__(self) -> str:
        return f"codec {str(self.codec)!r}, {self.pooling} pooling"

    def columns(self) -> list[pa.Field]:
        return self.codec.columns()

    def card_lines(self) -> str:
        return self.codec.card_line.format(width=self.codec.width)

    def facts(self) -> dict[str, Any]:
        return {"codec": str(self.codec), "vectors": f"{self.codec.width} numbers, {code(self.pooling)} pooling"}

    def problem(self, rows: pa.Table) -> str | None:
        return self.codec.problem(rows)

    def files(self) -> dict[str, int]:
        return {BASIS_FILE: self.codec.basis_bytes + HEADER_BYTES} if self.codec.basis_bytes else {}

    def hashes(self) -> dict[str, str]:
        return {BASIS_FILE: self.basis_sha256} if self.basis_sha256 else {}

    def check_files(self, root: Path) -> None:
        self.read_basis(root)

    def read_basis(self, root: Path) -> Basis | None:
        """Reads the basis from the set in ``root``, if the codec needs one.

        Raises:
            IntegrityError: if the file is missing or was changed, or is not a basis.
        """
        if not self.codec.basis_bytes:
            return None
        # With another basis every vector would decode to plausible but wrong numbers.
        path = own_file(root, BASIS_FILE, self.basis_sha256, "basis")
        return read_basis(path, self.codec.num_stored, self.codec.width)

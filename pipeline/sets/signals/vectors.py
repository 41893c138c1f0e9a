"""The signal ``vectors``: the pooled last hidden states of a sentence, in a codec's columns."""

from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from pipeline.errors import IntegrityError
from pipeline.files import is_plain, sha256
from pipeline.sets.config import Pooling
from pipeline.sets.record_parts import Sha256
from pipeline.sets.signals.signal import Signal
from pipeline.sets.vector_codecs import BASIS_FILE, AnyVectorCodec, Basis, read_basis
from pipeline.untrusted import code

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
        """See `Signal`."""
        return self.codec.columns()

    def card_lines(self) -> str:
        """See `Signal`."""
        return self.codec.card_line.format(width=self.codec.width)

    def facts(self) -> dict[str, Any]:
        """See `Signal`."""
        return {"codec": str(self.codec), "vectors": f"{self.codec.width} numbers, {code(self.pooling)} pooling"}

    def problem(self, rows: pa.Table) -> str | None:
        """See `Signal`."""
        return self.codec.problem(rows)

    def files(self) -> dict[str, int]:
        """The basis, if the codec needs one."""
        return {BASIS_FILE: self.codec.basis_bytes + HEADER_BYTES} if self.codec.basis_bytes else {}

    def hashes(self) -> dict[str, str]:
        """See `Signal`."""
        return {BASIS_FILE: self.basis_sha256} if self.basis_sha256 else {}

    def check_files(self, root: Path) -> None:
        """See `Signal`."""
        self.read_basis(root)

    def read_basis(self, root: Path) -> Basis | None:
        """Reads the basis from the set in ``root``, if the codec needs one.

        Raises:
            IntegrityError: if the file is missing or was changed, or is not a basis.
        """
        if not self.codec.basis_bytes:
            return None
        # Resolved, because the set's own folder may be a link, but its files may not.
        path = root.resolve() / BASIS_FILE
        # With another basis every vector would decode to plausible but wrong numbers, so the hash is checked at each
        # reading.
        if not is_plain(path) or sha256(path) != self.basis_sha256:
            raise IntegrityError(f"{path}: missing, or not the basis that belongs to this set")
        return read_basis(path, self.codec.num_stored, self.codec.width)

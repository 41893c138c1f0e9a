"""The signal ``mlm``: a masked language model's predictions at each masked position, in a codec's columns."""

from pathlib import Path
from typing import Any, ClassVar, Self

import pyarrow as pa

from pipeline.errors import IntegrityError
from pipeline.files import is_plain, sha256
from pipeline.sets.codecs import AnyCodec, Decoder
from pipeline.sets.codecs.decoder import DECODER_FILE
from pipeline.sets.record_parts import Sha256
from pipeline.sets.signals.signal import Signal

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
        """See `Signal`."""
        return self.codec.columns()

    def card_lines(self) -> str:
        """See `Signal`."""
        return self.codec.card_line

    def facts(self) -> dict[str, Any]:
        """See `Signal`."""
        return {"codec": str(self.codec)}

    def problem(self, rows: pa.Table) -> str | None:
        """See `Signal`."""
        return self.codec.problem({name: rows.column(name).combine_chunks().flatten() for name in self.codec.fields()})

    def files(self) -> dict[str, int]:
        """The decoder, if the codec needs one."""
        return {DECODER_FILE: self.codec.decoder_bytes + HEADER_BYTES} if self.codec.needs_decoder else {}

    def hashes(self) -> dict[str, str]:
        """See `Signal`."""
        return {DECODER_FILE: self.decoder_sha256} if self.decoder_sha256 else {}

    def check_files(self, root: Path) -> None:
        """See `Signal`."""
        self.read_decoder(root)

    def measured(self, root: Path) -> Self:
        """See `Signal`."""
        if not self.codec.needs_decoder:
            return self
        return self.model_copy(update={"decoder_sha256": sha256(root / DECODER_FILE)})

    def read_decoder(self, root: Path) -> Decoder | None:
        """Reads the teacher's last layer from the set in ``root``, if the codec needs it.

        Raises:
            IntegrityError: if the file is missing or was changed, or is not a decoder.
        """
        if not self.codec.needs_decoder:
            return None
        # Resolved, because the set's own folder may be a link, but its files may not.
        path = root.resolve() / DECODER_FILE
        if not is_plain(path) or sha256(path) != self.decoder_sha256:
            raise IntegrityError(f"{path}: missing, or not the decoder that belongs to this set")
        return self.codec.read_decoder(path)

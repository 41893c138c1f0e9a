"""A teacher's last layer, which the codec ``hidden`` needs for decoding: in memory, and as a file of the set.

Shapes: P positions, V vocabulary, H hidden size.
"""

# Annotations stay strings, so that reading records needs no torch.
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import IntegrityError

if TYPE_CHECKING:
    import torch

DECODER_FILE = "decoder.safetensors"


@dataclass(frozen=True)
class Decoder:
    """The last layer of a masked LM: logits_PV = hidden_PH @ weight_VH.T + bias_V, float32."""

    weight_VH: torch.Tensor
    bias_V: torch.Tensor

    def __call__(self, hidden_PH: torch.Tensor) -> torch.Tensor:
        """Returns logits_PV."""
        from torch.nn.functional import linear

        return linear(hidden_PH, self.weight_VH, self.bias_V)


def write_decoder(root: Path, decoder: Decoder) -> None:
    """Writes a decoder into a set's folder."""
    from pipeline.training.checkpoint import write_tensors

    tensors = {"weight": decoder.weight_VH.cpu().contiguous(), "bias": decoder.bias_V.cpu().contiguous()}
    write_tensors(root / DECODER_FILE, tensors)


def read_decoder(path: Path, vocabulary_size: int, hidden_size: int) -> Decoder:
    """Reads a ``decoder.safetensors``.

    Raises:
        IntegrityError: if it is missing or damaged, or of another size.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
        decoder = Decoder(tensors["weight"], tensors["bias"])
    except (OSError, SafetensorError, KeyError) as error:
        raise IntegrityError(f"{path}: not a decoder: {error}") from error
    kinds = {decoder.weight_VH.dtype, decoder.bias_V.dtype}
    shapes = (tuple(decoder.weight_VH.shape), tuple(decoder.bias_V.shape))
    if shapes != ((vocabulary_size, hidden_size), (vocabulary_size,)) or kinds != {torch.float32}:
        raise IntegrityError(f"{path}: not a decoder from {hidden_size} numbers to {vocabulary_size} tokens: {shapes}")
    # The file may come from another team, and a single NaN would turn every distribution of the set into NaN.
    if not (decoder.weight_VH.isfinite().all() and decoder.bias_V.isfinite().all()):
        raise IntegrityError(f"{path}: a number of the decoder is NaN or Inf")
    return decoder

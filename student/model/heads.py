"""Maps a representation to logits before softmax. No head ends in a ReLU, although two heads of the paper's code do.

A new head is a function or class that makes its module, a line in `HEADS`, and a name in `student.settings`.

Shapes: B batch, L tokens, F features, I channels, D side of a square, C logits.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from student.settings import HeadKind, PairingKind

Compare = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Pairing:
    """The properties of a way to combine two sentences.

    Attributes:
        words: its name in cards.
        compare: combines the two sentences' representations [..., F] into one [..., F * width]. None if the encoder
            reads both.
        width: the width of the result, as a multiple of one sentence's.
        is_one: whether both are read as one sequence, with the tokenizer's special tokens around them.
    """

    words: str
    compare: Compare | None = None
    width: int = 1
    is_one: bool = False


def diff_cat(u_BF: torch.Tensor, w_BF: torch.Tensor) -> torch.Tensor:
    """DiffCat: [u, w, |u - w|], three times as wide (paper, section III-C)."""
    return torch.cat([u_BF, w_BF, (u_BF - w_BF).abs()], dim=-1)


def concatenate_compare(u_BF: torch.Tensor, w_BF: torch.Tensor) -> torch.Tensor:
    """Concatenate-compare: [u, w, u * w, |u - w|], four times as wide (Tang et al. 2019)."""
    return torch.cat([u_BF, w_BF, u_BF * w_BF, (u_BF - w_BF).abs()], dim=-1)


PAIRINGS: dict[PairingKind, Pairing] = {
    "diffcat": Pairing("DiffCat, [u; w; |u-w|]", diff_cat, 3),
    "joint": Pairing("both sentences as one sequence", is_one=True),
    "compare": Pairing("concatenate-compare, [u; w; u*w; |u-w|]", concatenate_compare, 4),
    "attention": Pairing("each sentence read with attention to the other"),
}


# Three convolutions shrink a smaller square to one value, and batch norm needs several.
MIN_CNN_SIDE = 4


@dataclass(frozen=True)
class HeadShape:
    """The part of a student's configuration that determines its head.

    Attributes:
        num_logits: C.
        hidden_size: its width, or None for the head's default.
        side: D, the side of the squares into which parts of the representation are arranged.
        vector_size: the width of the encoder's vectors, or 0 without vectors.
        dropout: the dropout of the representation, or inside the head.
    """

    num_logits: int
    hidden_size: int | None
    side: int
    vector_size: int
    dropout: float


# The published code puts a ReLU on the logits of two heads, which makes negative logits impossible. No head here does.
def linear_head(num_features: int, num_logits: int) -> nn.Sequential:
    """The paper's linear probe: LayerNorm, Linear. Maps features_BF to logits_BC."""
    return nn.Sequential(nn.LayerNorm(num_features), nn.Linear(num_features, num_logits))


def mlp_head(num_features: int, hidden_size: int, num_logits: int) -> nn.Sequential:
    """The paper's MLP: Linear, ReLU, LayerNorm, Linear. It is ``wide_mlp`` in the published code, 1000 wide.

    Maps features_BF to logits_BC.
    """
    return nn.Sequential(
        nn.Linear(num_features, hidden_size),
        nn.ReLU(),
        nn.LayerNorm(hidden_size),
        nn.Linear(hidden_size, num_logits),
    )


def plain_mlp_head(num_features: int, hidden_size: int, num_logits: int, dropout: float) -> nn.Sequential:
    """The head of Tang et al. (2019): Linear, ReLU, dropout, Linear. Maps features_BF to logits_BC."""
    return nn.Sequential(
        nn.Linear(num_features, hidden_size), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden_size, num_logits)
    )


def cnn_head(num_features: int, side: int, num_logits: int) -> nn.Sequential:
    """2D-CNN over the parts of the representation, each arranged as a square. Maps features_BF to logits_BC.

    As in the published code (``diluted_cnn``), only the transposed convolution has a ReLU, while the supplement's text
    has one after each. This version and its sizes match the parameter counts in the supplement's tables.

    Args:
        num_features: F = I * side².
        side: D. The squares grow to 4 D and shrink to about D.
        num_logits: C.
    """
    channels = num_features // side**2
    # All sizes are those of the published code: they give the parameter counts in the supplement's tables.
    wide = channels + 2
    left = 4 * side - 3
    # Both strided convolutions have a kernel of 3 and no padding.
    for _ in range(2):
        left = (left - 3) // 2 + 1
    return nn.Sequential(
        nn.Unflatten(1, (channels, side, side)),
        nn.ConvTranspose2d(channels, channels, 4, stride=4),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 4),
        nn.Conv2d(channels, wide, 3, stride=2),
        nn.Conv2d(wide, wide, 3, stride=2),
        nn.BatchNorm2d(wide),
        nn.Flatten(),
        nn.Dropout(0.4),
        nn.Linear(left**2 * wide, num_logits),
    )


def hidden_layer(head: nn.Module) -> nn.Linear | None:
    """Returns the layer of a head that makes hidden numbers of its input, or None for a head without one."""
    first = head[0] if isinstance(head, nn.Sequential) else None
    return first if isinstance(first, nn.Linear) else None


def is_as_large(one: nn.Linear, other: nn.Linear) -> bool:
    """Whether two layers have the same sizes."""
    return one.weight.shape == other.weight.shape


def is_equal(one: nn.Linear, other: nn.Linear) -> bool:
    """Whether two layers give the same numbers."""
    return is_as_large(one, other) and torch.equal(one.weight, other.weight) and torch.equal(one.bias, other.bias)


def share_hidden_layers(heads: Iterable[nn.Module], can_share: Callable[[nn.Linear, nn.Linear], bool]) -> None:
    """Gives a head the hidden layer of the first head before it that can share its own.

    The hidden layer takes most of the time of an answer, so tasks that share it are answered almost as fast as one.
    """
    kept: list[nn.Linear] = []
    for head in heads:
        own = hidden_layer(head)
        if own is None:
            continue
        assert isinstance(head, nn.Sequential)
        shared = next((layer for layer in kept if can_share(layer, own)), None)
        if shared is None:
            kept.append(own)
        else:
            head[0] = shared


def logits_of_heads(heads: Sequence[nn.Module], *inputs: torch.Tensor) -> torch.Tensor:
    """Returns the logits of heads side by side [B, C]. What they share is computed once."""
    hidden: dict[nn.Module, torch.Tensor] = {}
    logits = []
    for head in heads:
        layer = hidden_layer(head)
        if layer is None:
            logits.append(head(*inputs))
            continue
        assert isinstance(head, nn.Sequential)
        if layer not in hidden:
            hidden[layer] = layer(*inputs)
        logits.append(head[1:](hidden[layer]))
    return torch.cat(logits, dim=1)


class BiLstmHead(nn.Module):
    """The paper's BiLSTM over the representations of all prefixes and suffixes, without the padding.

    As in the published code: one layer, both last hidden states, ReLU, Linear, dropout, Linear. According to the
    supplement the LSTM reads token embeddings. The code reads prefix products and sums, and so does this head. The
    supplement's table for joint pairs counts an older head that was never published.

    Args:
        num_features: F.
        hidden_size: the width of each direction. The paper's is F.
        num_logits: C.
    """

    def __init__(self, num_features: int, hidden_size: int, num_logits: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.lstm = nn.LSTM(num_features, hidden_size, batch_first=True, bidirectional=True)
        self.classifier = nn.Sequential(
            nn.ReLU(), nn.Linear(2 * hidden_size, hidden_size), nn.Dropout(0.5), nn.Linear(hidden_size, num_logits)
        )

    def forward(self, features_BLF: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        """Returns logits_BC. ``lengths_B`` are the numbers of tokens, each at least 1."""
        # The published code runs over the padding, so its logits depend on the batch. Packing removes the padding.
        packed = pack_padded_sequence(features_BLF, lengths_B.cpu(), batch_first=True, enforce_sorted=False)
        # The last hidden states of both directions have each read the whole sequence.
        _, (last_2BH, _) = self.lstm(packed)
        return self.classifier(torch.cat(last_2BH.unbind(), dim=1))  # type: ignore[no-any-return]


def _no_problems(shape: HeadShape) -> list[str]:
    return []


def _multiply_adds(head: nn.Module, num_features: int) -> tuple[int, int]:
    # This import loads Triton and takes a second, and predictions never count operations.
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        # Batch norm refuses a batch of one row while it trains.
        head.eval()(torch.zeros(1, num_features, device=next(head.parameters()).device))
    return 0, counter.get_total_flops() // 2


@dataclass(frozen=True)
class Head:
    """The properties of a kind of head.

    Attributes:
        words: its name in cards.
        make: makes the module of a shape for a number of features. The module maps features_BF to logits_BC. With
            ``reads_tokens``, its input is features_BLF and lengths_B.
        reads_tokens: whether its input is the representation of every token, rather than that of the sequence.
        has_width: whether it has a ``hidden_size``.
        default_width: its default ``hidden_size``. None: ``make`` decides.
        drops_itself: whether it has its own dropout, instead of dropout of the representation.
        reads_squares: whether parts of the representation, including vectors, are arranged as squares.
        sorted_batches: whether it can be trained on batches of rows with similar lengths.
        can_be_exported: whether torch can write it as ONNX.
        problems: returns why it cannot have this shape.
        multiply_adds: returns the multiply-adds per token and per input, for a module with so many features.
    """

    words: str
    make: Callable[[HeadShape, int], nn.Module]
    reads_tokens: bool = False
    has_width: bool = False
    default_width: int | None = None
    drops_itself: bool = False
    reads_squares: bool = False
    sorted_batches: bool = True
    can_be_exported: bool = True
    problems: Callable[[HeadShape], list[str]] = _no_problems
    multiply_adds: Callable[[Any, int], tuple[int, int]] = _multiply_adds


def _make_linear(shape: HeadShape, num_features: int) -> nn.Module:
    return linear_head(num_features, shape.num_logits)


def _make_dense(shape: HeadShape, num_features: int) -> nn.Module:
    # A BERT's classifier is a single layer, so that transformers can load the folder.
    return nn.Linear(num_features, shape.num_logits)


def _make_mlp(shape: HeadShape, num_features: int) -> nn.Module:
    assert shape.hidden_size is not None, "_mlp_problems tells"
    return mlp_head(num_features, shape.hidden_size, shape.num_logits)


def _make_plain_mlp(shape: HeadShape, num_features: int) -> nn.Module:
    assert shape.hidden_size is not None, "_mlp_problems tells"
    return plain_mlp_head(num_features, shape.hidden_size, shape.num_logits, shape.dropout)


def _mlp_problems(shape: HeadShape) -> list[str]:
    return [] if shape.hidden_size is not None else ["an MLP needs a hidden_size"]


def _make_cnn(shape: HeadShape, num_features: int) -> nn.Module:
    return cnn_head(num_features, shape.side, shape.num_logits)


def _cnn_problems(shape: HeadShape) -> list[str]:
    side = shape.side
    if shape.vector_size not in (0, side**2):
        return [f"the cnn head needs vectors of {side} x {side}, not of {shape.vector_size}"]
    if side < MIN_CNN_SIDE:
        return [f"the cnn head needs a side of at least {MIN_CNN_SIDE}, not {side}"]
    return []


def _make_bilstm(shape: HeadShape, num_features: int) -> nn.Module:
    return BiLstmHead(num_features, shape.hidden_size or num_features, shape.num_logits)


def _bilstm_multiply_adds(head: BiLstmHead, num_features: int) -> tuple[int, int]:
    per_token = sum(p.numel() for name, p in head.lstm.named_parameters() if name.startswith("weight"))
    return per_token, _multiply_adds(head.classifier, 2 * head.hidden_size)[1]


HEADS: dict[HeadKind, Head] = {
    "mlp": Head("MLP", _make_mlp, has_width=True, default_width=128, problems=_mlp_problems),
    "plain-mlp": Head(
        "MLP without LayerNorm",
        _make_plain_mlp,
        has_width=True,
        default_width=128,
        drops_itself=True,
        problems=_mlp_problems,
    ),
    "linear": Head("linear probe", _make_linear),
    "cnn": Head(
        "2D-CNN",
        _make_cnn,
        reads_squares=True,
        # Batch norm's statistics would be those of short or long rows alone.
        sorted_batches=False,
        problems=_cnn_problems,
    ),
    "bilstm": Head(
        "BiLSTM",
        _make_bilstm,
        reads_tokens=True,
        # Without a width the LSTM is as wide as its input, as in the paper.
        has_width=True,
        # torch.onnx cannot export packed sequences.
        can_be_exported=False,
        multiply_adds=_bilstm_multiply_adds,
    ),
    "dense": Head("one linear layer", _make_dense),
}

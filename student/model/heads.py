"""From a representation to logits, before softmax: no head ends in a ReLU, though the paper's code puts one on two.

Shapes: B batch, L tokens, F features, I channels, D side of a square, C logits.
"""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


def linear_head(num_features: int, num_logits: int) -> nn.Sequential:
    """The paper's linear probe: LayerNorm, Linear. Maps features_BF to logits_BC."""
    return nn.Sequential(nn.LayerNorm(num_features), nn.Linear(num_features, num_logits))


def mlp_head(num_features: int, hidden_size: int, num_logits: int) -> nn.Sequential:
    """The paper's MLP: Linear, ReLU, LayerNorm, Linear; ``wide_mlp`` in its published code, 1000 wide.

    Maps features_BF to logits_BC.
    """
    return nn.Sequential(
        nn.Linear(num_features, hidden_size),
        nn.ReLU(),
        nn.LayerNorm(hidden_size),
        nn.Linear(hidden_size, num_logits),
    )


def cnn_head(num_features: int, side: int, num_logits: int) -> nn.Sequential:
    """2D-CNN over the parts of the representation, each laid out as a square; maps features_BF to logits_BC.

    As in the published code (``diluted_cnn``): ReLU after the transposed convolution only, where the supplement's text
    has one after each; that and the sizes are what the parameters in its tables belong to.

    Args:
        num_features: F = I * side².
        side: D; the squares grow to 4 D and shrink to about D.
        num_logits: C.
    """
    channels = num_features // side**2
    wide = channels + 2
    left = 4 * side - 3
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


class BiLstmHead(nn.Module):
    """The paper's BiLSTM over the representations of all prefixes and suffixes, without the padding.

    As in the published code: one layer, both last hidden states, ReLU, Linear, dropout, Linear. The supplement says
    that it reads token embeddings; the code reads prefix products and sums, and so does this. The supplement's table
    for joint pairs counts an older head that was never published.

    Args:
        num_features: F.
        hidden_size: of each direction; the paper's is F.
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
        """Returns logits_BC; ``lengths_B`` are the numbers of tokens, each at least 1."""
        packed = pack_padded_sequence(features_BLF, lengths_B.cpu(), batch_first=True, enforce_sorted=False)
        _, (last_2BH, _) = self.lstm(packed)
        return self.classifier(torch.cat(last_2BH.unbind(), dim=1))  # type: ignore[no-any-return]


def diff_cat(u_BF: torch.Tensor, w_BF: torch.Tensor) -> torch.Tensor:
    """DiffCat: [u ; w ; |u - w|], three times as wide (paper, section III-C)."""
    return torch.cat([u_BF, w_BF, (u_BF - w_BF).abs()], dim=-1)


def concatenate_compare(u_BF: torch.Tensor, w_BF: torch.Tensor) -> torch.Tensor:
    """Concatenate-compare: [u ; w ; u * w ; |u - w|], four times as wide (Tang et al. 2019)."""
    return torch.cat([u_BF, w_BF, u_BF * w_BF, (u_BF - w_BF).abs()], dim=-1)


COMPARE = {"diffcat": diff_cat, "compare": concatenate_compare}
WIDTHS = {"diffcat": 3, "compare": 4, "joint": 1}  # of the result, as multiples of one sentence's

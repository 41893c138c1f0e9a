"""From a representation to logits. Shapes: B batch, F features, C logits."""

from torch import nn


def mlp_head(num_features: int, hidden_size: int, num_logits: int) -> nn.Sequential:
    """The paper's MLP: Linear, ReLU, LayerNorm, Linear; ``wide_mlp`` in its published code, 1000 wide.

    Maps features_BF to logits_BC. No ReLU on the logits.
    """
    return nn.Sequential(
        nn.Linear(num_features, hidden_size),
        nn.ReLU(),
        nn.LayerNorm(hidden_size),
        nn.Linear(hidden_size, num_logits),
    )

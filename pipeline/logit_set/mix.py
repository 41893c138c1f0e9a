"""``--mix``: how several teachers speak as one, as SQL."""

from collections.abc import Sequence

from pipeline.errors import ConfigError, did_you_mean
from pipeline.targets import Target

DEFAULT_MIX = "mean"
EXAMPLES = ("mean", "vote", "weighted:0.7,0.3")


def mix_sql(mix: str, target: Target, logits: Sequence[str]) -> str:
    """The SQL expression of the mixture: a call of the macro ``mix`` or ``vote``.

    Args:
        mix: ``mean``, ``vote``, or ``weighted:`` and a weight per teacher.
        target: what the logits mean.
        logits: each teacher's logits, in SQL.

    Raises:
        ConfigError: if ``mix`` is none of these or does not fit the target.
    """
    kind, _, numbers = mix.partition(":")
    teachers = f"[{', '.join(logits)}]"
    if mix == "vote":
        if target.kind == "score":
            raise ConfigError(
                "--mix vote: these teachers say a score, and scores have no majority; use mean or weighted"
            )
        call = f"vote({teachers})"
    elif mix == "mean":
        call = f"mix({teachers}, {[1 / len(logits)] * len(logits)})"
    elif kind == "weighted":
        call = f"mix({teachers}, {_weights(mix, numbers.split(','), len(logits))})"
    else:
        raise ConfigError(f"--mix {mix}: {did_you_mean(mix, EXAMPLES)}")
    return f"{call}::float[{target.num_logits}]"


def _weights(mix: str, numbers: list[str], count: int) -> list[float]:
    """Weights with the sum 1."""
    try:
        weights = [float(number) for number in numbers]
    except ValueError as error:
        raise ConfigError(f"--mix {mix}: weights are numbers, as in weighted:0.7,0.3") from error
    if len(weights) != count:
        raise ConfigError(f"--mix {mix}: {len(weights)} weights for {count} sets; give one for each --logits")
    total = sum(weights)
    shares = [weight / total for weight in weights] if total > 0 else []
    if not shares or not all(0 < share < float("inf") for share in shares):
        raise ConfigError(f"--mix {mix}: weights are positive and finite; leave a set out instead of giving it 0")
    return shares

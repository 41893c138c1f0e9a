"""``logits`` of a task's row and ``token_logits`` of each token of a sentence, before softmax, in label order."""

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrays import Floats
from pipeline.sets.signals.signal import Signal
from pipeline.tasks.target import Target
from pipeline.untrusted import code


class Logits(Signal):
    """Column ``logits``: a list of C numbers.

    Attributes:
        target: their meaning, with a name for each.
    """

    title: ClassVar[str] = "logits of a task"
    task_category: ClassVar[str] = "text-classification"

    target: Target

    def __str__(self) -> str:
        return f"{self.target.num_logits} logits"

    def columns(self) -> list[pa.Field]:
        """See `Signal`."""
        return [pa.field("logits", pa.list_(pa.float32(), self.target.num_logits), nullable=False)]

    def card_lines(self) -> str:
        """See `Signal`."""
        names = ", ".join(f"`{code(name)}`" for name in self.target.names).replace("|", "\\|")
        apart = ", each for its own sigmoid" if self.target.has_label_lists else ""
        return f"| `logits` | {self.target.num_logits} float32, in this order: {names}{apart} |"

    def facts(self) -> dict[str, Any]:
        """See `Signal`."""
        names = ", ".join(self.target.names)
        return {"logits": "the score itself" if self.target.is_score else f"{self.target.num_logits}: {names}"}

    def problem(self, rows: pa.Table) -> str | None:
        """See `Signal`."""
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


class TokenLogits(Signal):
    """Column ``logits``: a list of C numbers for each token, float32.

    Attributes:
        target: their meaning, with a name for each.
    """

    title: ClassVar[str] = "logits of words"
    task_category: ClassVar[str] = "token-classification"

    target: Target

    def __str__(self) -> str:
        return f"{self.target.num_logits} logits per token"

    def columns(self) -> list[pa.Field]:
        """See `Signal`."""
        return [pa.field("logits", pa.list_(pa.list_(pa.float32(), self.target.num_logits)), nullable=False)]

    def card_lines(self) -> str:
        """See `Signal`."""
        names = ", ".join(f"`{code(name)}`" for name in self.target.names).replace("|", "\\|")
        return f"| `logits` | {self.target.num_logits} float32 for each token, in this order: {names} |"

    def facts(self) -> dict[str, Any]:
        """See `Signal`."""
        return {"logits": f"{self.target.num_logits} per token: {', '.join(self.target.names)}"}

    def problem(self, rows: pa.Table) -> str | None:
        """See `Signal`."""
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

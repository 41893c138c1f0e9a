"""How columns and rows are named in what is told to be wrong with them."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import did_you_mean

MAX_EXAMPLES = 3


def column_name(
    names: Sequence[str], place: str, accepted: Sequence[str], problems: list[str], taken: Sequence[str] = ()
) -> str | None:
    """The first of the accepted names that is among a table's; if none is, that is added to the problems.

    Args:
        names: the table's columns.
        place: file or hub address, for messages.
        accepted: names that the column may have.
        problems: is added to.
        taken: columns that are something else.
    """
    name = next((name for name in accepted if name in names), None)
    if name is None:
        wanted = " or ".join(repr(a) for a in accepted)
        problems.append(f"{place}: no column {wanted}; {did_you_mean(accepted[0], names, taken)}")
    return name


def row_numbers(mask: pa.Array, first_row: int = 0) -> str:
    """Which rows of a boolean column, the first of which has a number, are true, in words; of many the first."""
    return rows_in_words([first_row + number for number in pc.indices_nonzero(mask).to_pylist()])


def rows_in_words(numbers: Sequence[int]) -> str:
    """These rows in words; of many the first."""
    shown = ", ".join(str(n) for n in numbers[:MAX_EXAMPLES])
    more = f", … ({len(numbers):,} rows)" if len(numbers) > MAX_EXAMPLES else ""
    return f"{'row' if len(numbers) == 1 else 'rows'} {shown}{more}"

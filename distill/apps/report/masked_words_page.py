"""The page of ``distill masked-words``: how alike teacher and students are, and some rows word by word."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from distill.apps.report import charts
from distill.apps.report.page import Page, Picture, Section, Table, clipped
from pipeline.arrays import Floats64
from pipeline.tasks.metrics import spearmanr
from student.word_importance import RESULT_COLUMNS, MaskedRow, MaskedWords, result_rows

MOST_PICTURES = 6
FEWEST_WORDS, MOST_WORDS = 4, 30  # that are drawn of a row
HOW_TO_READ = (
    "Blue: without the word the answer is less sure (a score: moves). Orange: surer. Each column has its own scale."
)


def masked_words_page(compared: MaskedWords) -> Page:
    """The table of all runs, and rows from the one where the first run is most like its teacher to the least like."""
    results = Table("Importance of words", RESULT_COLUMNS, result_rows(compared), _caption())
    pictures = tuple(_picture(compared, number) for number in _chosen(compared))
    sections = (Section("Students and their teacher", tables=(results,)), Section("Word by word", pictures=pictures))
    lead = f"The importance of {compared.amount} to their teacher and to students."
    return Page("masked words", compared.set_name, lead, sections)


def _caption() -> str:
    return (
        "Spearman's rank correlation of the words' importance to the student and to its teacher, the mean over rows, "
        "and in which share of the rows both name the same most important word; shuffled: the same with the teacher's "
        "words of each row in random order."
    )


def _chosen(compared: MaskedWords) -> list[int]:
    """Numbers of rows that can be drawn, spread evenly over those in the order of the first run's correlation."""
    drawable = [n for n, row in enumerate(compared.rows) if FEWEST_WORDS <= len(row.words) <= MOST_WORDS]
    first = next(iter(compared.students.values()))
    alike = {n: spearmanr(np.stack([compared.rows[n].importance_W, first[n]])[:, None])[0] for n in drawable}
    ordered = sorted(drawable, key=lambda n: -alike[n])
    places = np.linspace(0, len(ordered) - 1, min(MOST_PICTURES, len(ordered))).round().astype(int)
    return [ordered[place] for place in places]


def _picture(compared: MaskedWords, number: int) -> Picture:
    row = compared.rows[number]
    columns = {"teacher": row.importance_W} | {
        Path(run).resolve().name: of[number] for run, of in compared.students.items()
    }
    words = [word.text for word in row.words]
    drawn = charts.shades(words, {name: values.tolist() for name, values in columns.items()})
    title = f"Row {row.source_row}: {clipped(' | '.join(row.texts), 60)}"
    return Picture(title, drawn, HOW_TO_READ, _figures(row, columns))


def _figures(row: MaskedRow, columns: Mapping[str, Floats64]) -> list[dict[str, object]]:
    return [
        {"word": word.text, "sentence": word.side + 1} | {name: float(values[n]) for name, values in columns.items()}
        for n, word in enumerate(row.words)
    ]

"""What words do to answers: ``distill masked-words``, and what ``distill predict --explain`` prints."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.commands.options import needs_libraries, takes
from pipeline import console
from pipeline.errors import ConfigError
from student.config import MaskedWordsConfig

if TYPE_CHECKING:
    from student.masked_words import MaskedWords

BAR = 10  # characters to either side
MOST_LABELS = 3  # of a prediction, each with a table of its own


def print_explanations(
    sentences1: Sequence[str], sentences2: Sequence[str] | None, explained: list[dict[str, Any]], json_output: bool
) -> None:
    """Prints what `Predictor.explain` gives: for each input a table of its words, with bars for or against the answer.

    The bars of a table are to one scale: the longest is of the word that does most.
    """
    if json_output:
        console.print_json(explained)
        return
    for number, prediction in enumerate(explained):
        texts = [sentences1[number], *([] if sentences2 is None else [sentences2[number]])]
        for name, value in _said(prediction):
            title = f"{name} {console.show(value)}: {' | '.join(texts)}"
            _print_words(title, name, prediction["words"], is_pair=sentences2 is not None)


def _said(prediction: dict[str, Any]) -> list[tuple[str, float]]:
    """What words are told to be for or against: the score, or the labels that are said, or else the likeliest one."""
    if "score" in prediction:
        return [("score", prediction["score"])]
    probabilities: dict[str, float] = prediction["probabilities"]
    label = prediction["label"]
    said = [name for name in (label if isinstance(label, list) else [label]) if name in probabilities]
    ranked = sorted(said or probabilities, key=probabilities.__getitem__, reverse=True)
    return [(name, probabilities[name]) for name in ranked[: MOST_LABELS if said else 1]]


def _print_words(title: str, name: str, words: list[dict[str, Any]], is_pair: bool) -> None:
    largest = max((abs(word["effect"][name]) for word in words), default=0.0)
    rows = [
        [
            *([word["sentence"]] if is_pair else []),
            word["word"],
            f"{word['effect'][name]:+.4f}",
            bar(word["effect"][name], largest),
            *([f"{word['entropy']:+.4f}"] if "entropy" in word else []),
        ]
        for word in words
    ]
    entropy = ["entropy without"] if words and "entropy" in words[0] else []
    heads = [*(["sentence"] if is_pair else []), "word", "effect", f"{'against':>{BAR}}│for", *entropy]
    console.print_table(heads, rows, title=title)


def bar(value: float, largest: float) -> str:
    """A bar to the right for what is above 0, to the left for what is below, as long as its share of the largest."""
    length = round(BAR * abs(value) / largest) if largest else 0
    left, right = ("", "█" * length) if value > 0 else ("█" * length, "")
    return f"{left:>{BAR}}│{right:<{BAR}}"


@takes(MaskedWordsConfig)
def masked_words(config: MaskedWordsConfig) -> None:
    """Compare which words matter to students and to their teacher, by its answers to rows with each word masked."""
    if config.output is not None:
        needs_libraries("distill masked-words --output", "report", "jinja2", "matplotlib")
        if config.output.is_dir():
            raise ConfigError(f"--output {config.output}: is a folder; give the name of a file")
    from student.masked_words import RESULT_COLUMNS, result_rows
    from student.masked_words import masked_words as compare

    compared = compare(config)
    if config.output is not None:
        _write_page(config.output, compared)
    if config.json_output:
        rows, words = len(compared.rows), sum(len(row.words) for row in compared.rows)
        console.print_json({"set": compared.set_name, "rows": rows, "words": words, "runs": compared.results})
    else:
        console.print_table(RESULT_COLUMNS, result_rows(compared), title=f"{compared.set_name}: {compared.amount}")


def _write_page(output: Path, compared: "MaskedWords") -> None:
    from distill.apps.report.masked_words import masked_words_page
    from distill.apps.report.page import render
    from pipeline.files import make_folder, write_text_alone

    make_folder(output.parent)
    write_text_alone(output, render(masked_words_page(compared)))
    console.note(f"{output}: written")

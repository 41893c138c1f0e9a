"""What the checker of prose counts, on sentences made by hand."""

import pytest

from tests.prose.__main__ import problems
from tests.prose.measure import Prose, findings_of, sentences_of
from tests.prose.read import markdown, python


@pytest.mark.parametrize(
    "sentence",
    [
        "The manifest says which columns there are.",
        "A set knows its teacher.",
        "The teacher is asked once per row.",
        "Files of other teams are told apart.",
        "MRPC is trained likewise.",
        "Rows without gold have none.",
        "Students train alone, as they would without a teacher.",
        "It is no slower, nor does it take more memory.",
    ],
)
def test_a_construction_that_readers_stumble_over_is_found(sentence: str) -> None:
    assert len(findings_of(sentence)) == 1


@pytest.mark.parametrize(
    "sentence",
    [
        "The manifest stores the columns.",
        "You know how many rows you have.",
        "A colleague who asks for the set gets a copy.",
        "Users may say which label is right.",
        "None of the rows is lost, and there is none twice.",
        "Questions per second.",
        "ask: returns logits of texts.",
        "See teacher.imported.ask for the protocol.",
    ],
)
def test_plain_sentences_pass(sentence: str) -> None:
    assert findings_of(sentence) == []


def test_sentences_end_at_full_stops_and_not_at_decimals_or_colons() -> None:
    text = "Accuracy is 85.8 %. Two limits: time, e.g. hours, and memory. `distill` stops there! It does."
    assert len(sentences_of(text)) == 4


def test_length_and_semicolons_are_counted_per_word() -> None:
    prose = Prose(("One two three four five six; seven eight.", "One two."), ("a cell; of five words",))
    assert prose.mean_sentence == 5
    assert prose.short_sentences == 50
    assert prose.semicolons == pytest.approx(2000 / 15)


def test_markdown_without_code_markup_and_addresses() -> None:
    page = """# A heading; says

A [link](page.md#says) to **two** words
and `code; says` here.

```sh
distill sql "select 1;"
```

| a cell of a table | x |
|---|---|
| another cell; here it is | 1.0 |

- The first item.
- The second item.
"""
    prose = markdown(page)
    assert prose.paragraphs == ("A link to two words and CODE here.", "The first item.", "The second item.")
    assert prose.cells == ("a cell of a table", "another cell; here it is")


def test_python_gives_docstrings_messages_and_comments() -> None:
    code = '''
def load(path):
    """Returns the rows of a file.

    Args:
        path: a file of rows.
    """
    # Rows are sorted here because the reader
    # expects their keys in order.
    raise ConfigError(f"{path} is empty. "
        "Write at least one row.")
    return {"name": "value"}  # one entry per row
'''
    assert python(code).paragraphs == (
        "Returns the rows of a file.",
        "path: a file of rows.",
        "Rows are sorted here because the reader expects their keys in order.",
        "VALUE is empty. Write at least one row.",
        "one entry per row",
    )


def test_each_number_above_its_limit_is_one_line_with_the_page() -> None:
    limits = {"mean_sentence": 4, "short_sentences": 100, "semicolons": 0, "findings": 0}
    found = problems("docs/page.md", Prose(("The file says where; the page knows how.",)), limits)
    assert len(found) == 5
    assert all(line.startswith("docs/page.md: ") for line in found)
    assert problems("docs/page.md", Prose(("It stores three rows.",)), limits) == []

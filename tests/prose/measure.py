"""What is measured of prose: the length of sentences, semicolons, and constructions that readers stumble over."""

import re
from dataclasses import dataclass
from functools import cached_property

# A person may say something. A file stores, a command prints and a model predicts. Names of arguments and of modules
# are not verbs.
PEOPLE = (
    r"I|you|we|they|who|people|person|somebody|someone|anybody|anyone|nobody|everybody|authors?|colleagues?|readers?|users?"
    r"|maintainers?|reviewers?|owners?|annotators?|experts?"
)
SPEECH = r"says|say|said|tells|tell|told|asks|ask|asked|knows|know|likes|thinks|speaks|speak"
BANNED = {
    "data that speak": rf"(?<!\bto )(?<!\.)\b(?:{SPEECH})\b(?!:)",
    "likewise": r"\blikewise\b",
    "a noun is missing": r"\b(?:(?<!there )(?:is|are|has|have) none\b(?! of\b)|the same of\b|as they would without\b)",
    "an inversion": r"\b(?:[Nn]or|[Nn]either|[Nn]o more) (?:do|does|is|are|has|have|can|may)\b",
    "archaic": r"\b(?:beside what|whereof|thereof|one's own|for it is|for they are|hangs? on|comes? to nothing)\b",
}


@dataclass(frozen=True)
class Finding:
    """One banned construction, with the words around it."""

    name: str
    excerpt: str


@dataclass(frozen=True)
class Prose:
    """Plain text, one paragraph, list item or table cell per entry. Cells need not be sentences."""

    paragraphs: tuple[str, ...]
    cells: tuple[str, ...] = ()

    @cached_property
    def sentences(self) -> list[str]:
        """The sentences of the paragraphs, without the cells."""
        return [sentence for paragraph in self.paragraphs for sentence in sentences_of(paragraph)]

    @cached_property
    def words(self) -> int:
        """The number of words of everything, cells included."""
        return sum(len(words_of(text)) for text in (*self.paragraphs, *self.cells))

    @property
    def mean_sentence(self) -> float:
        """Words per sentence."""
        return sum(len(words_of(sentence)) for sentence in self.sentences) / max(1, len(self.sentences))

    @property
    def short_sentences(self) -> float:
        """The share of sentences of at most five words, in percent: sentences that were chopped raise it."""
        short = [text for text in self.sentences if len(words_of(text)) <= 5 and text.endswith((".", "!", "?"))]
        return 100 * len(short) / max(1, len(self.sentences))

    @property
    def semicolons(self) -> float:
        """Semicolons per 1,000 words."""
        return 1000 * sum(text.count(";") for text in (*self.paragraphs, *self.cells)) / max(1, self.words)

    @cached_property
    def findings(self) -> list[Finding]:
        """The banned constructions."""
        return [finding for text in (*self.paragraphs, *self.cells) for finding in findings_of(text)]


def words_of(text: str) -> list[str]:
    """What a reader counts as words: anything between blanks that has a letter or a digit."""
    return [word for word in text.split() if any(map(str.isalnum, word))]


def sentences_of(paragraph: str) -> list[str]:
    """A paragraph's sentences. A colon does not end one, and neither does a decimal point."""
    parts = re.split(r"(?<=[.!?])[)\"”]?\s+(?=[A-Z0-9`\"“(])", re.sub(r"\b(e\.g|i\.e|vs|cf)\.", r"\1", paragraph))
    return [part for part in parts if words_of(part)]


def findings_of(text: str) -> list[Finding]:
    """The banned constructions of one paragraph."""
    found = [(name, match) for name, pattern in BANNED.items() for match in re.finditer(pattern, text)]
    return [
        Finding(name, text[max(0, match.start() - 40) : match.end() + 40])
        for name, match in found
        if name != "data that speak" or not spoken_by_people(text[: match.start()])
    ]


def spoken_by_people(before: str) -> bool:
    """Whether the three words before a verb of speech name a person."""
    return bool(re.search(rf"\b(?:{PEOPLE})\b", " ".join(before.split()[-3:]), re.IGNORECASE))

"""The bodies of requests, their texts, and the error for refused requests."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from student.texts import BLANK, has_text, taken

MAX_CHARACTERS = 100_000
# Built once, because json.dumps with these options builds a new encoder for every call.
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

Sentences = Annotated[list[str], Field(min_length=1, max_length=2)]  # one, or a pair
Scale = Literal["softmax", "sigmoid", "none"]
Q = TypeVar("Q", bound="Body")


class RefusedError(Exception):
    """A request that is refused.

    Args:
        status: of HTTP.
        kind: one of text-embeddings-inference's error types.
        message: the problem and its remedy.
        headers: additional headers of the response.
    """

    def __init__(self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.headers = status, kind, dict(headers or {})


class Body(BaseModel):
    """The body of a request. Unknown keys are ignored, as in text-embeddings-inference."""

    model_config = ConfigDict(strict=True)
    shape: ClassVar = ""  # of the inputs, in words
    several: ClassVar[tuple[str, str]] = ('["a", "b"]', "")  # how texts and pairs are written, for messages
    inputs: Any

    def rows(self) -> list[Sentences]:
        """The sentences of each input."""
        raise NotImplementedError

    @property
    def is_batch(self) -> bool:
        """Whether a request may have several inputs."""
        return isinstance(self.inputs, list)


class PredictRequest(Body):
    """The body of ``/predict``: a text, a pair, or a batch."""

    inputs: str | Sentences | list[Sentences]
    raw_scores: bool = False
    truncate: bool | None = None
    shape: ClassVar = "a string, a pair [string, string] or a batch [[string], [string, string], …]"
    several: ClassVar = ('[["a"], ["b"]]', '[["a", "b"], ["c", "d"]]')

    def rows(self) -> list[Sentences]:
        """The sentences of each input."""
        if isinstance(self.inputs, str):
            return [[self.inputs]]
        return self.inputs if self.is_batch else [self.inputs]  # type: ignore[return-value,list-item]

    @property
    def is_batch(self) -> bool:
        """Whether the answer is a list of answers. A pair gets a single answer."""
        return isinstance(self.inputs, list) and not any(isinstance(one, str) for one in self.inputs)


class TasksRequest(PredictRequest):
    """The body of ``/tasks``: that of ``/predict``, and the tasks that answer. Default: all that take such inputs."""

    tasks: Annotated[list[str], Field(min_length=1)] | None = None


class EmbedRequest(Body):
    """The body of ``/embed``: a text, or several."""

    inputs: str | list[str]
    normalize: bool | None = True
    truncate: bool | None = None
    shape: ClassVar = "a string or a list of strings"

    def rows(self) -> list[Sentences]:
        """Each text."""
        return [[one] for one in self.inputs] if isinstance(self.inputs, list) else [[self.inputs]]


class TextPair(BaseModel):
    """A pair, as the hub writes it."""

    text: str
    text_pair: str


class HubParameters(BaseModel):
    """The parameters that the hub's clients can send with a text."""

    top_k: Annotated[int, Field(ge=1)] | None = None
    function_to_apply: Scale | None = None


class HubRequest(Body):
    """The body of ``/``: a text or a pair, or several of them."""

    inputs: str | TextPair | list[str | TextPair]
    parameters: HubParameters | None = None
    shape: ClassVar = 'a string, a pair {"text": string, "text_pair": string} or a list of such'
    several: ClassVar = ('["a", "b"]', '[{"text": "a", "text_pair": "b"}]')

    def rows(self) -> list[Sentences]:
        """The sentences of each input."""
        several = self.inputs if isinstance(self.inputs, list) else [self.inputs]
        return [[one] if isinstance(one, str) else [one.text, one.text_pair] for one in several]


@dataclass(frozen=True)
class Texts:
    """Sentences as a student takes them: the (first) ones, and the second ones of pairs."""

    first: list[str]
    second: list[str] | None

    def __len__(self) -> int:
        return len(self.first)

    def taken(self, rows: Sequence[int]) -> "Texts":
        """Returns some of them."""
        return Texts(*taken(self.first, self.second, rows))

    @property
    def characters(self) -> int:
        """Of all sentences."""
        return sum(map(len, self.first)) + sum(map(len, self.second or ()))


def parsed(kind: type[Q], body: bytes) -> Q:
    """Reads the body of a request.

    Raises:
        RefusedError: if it is not JSON (400), or does not fit (422).
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        # The input stays out of the message: texts may be confidential and messages end up in logs.
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
        if problem["type"] == "json_invalid":
            raise RefusedError(400, "Validation", problem["msg"]) from error
        raise RefusedError(422, "Validation", _in_words(kind, problem)) from error


def checked_texts(body: Body, is_pair: bool, most: int) -> Texts:
    """Returns the texts of inputs.

    Args:
        body: the body of the request.
        is_pair: whether each input must have two sentences.
        most: the maximum number of inputs.

    Raises:
        RefusedError: if there are no inputs (400), too many or too long ones (413), or a wrong number of sentences in
            one (422).
    """
    rows = body.rows()
    if not rows:
        raise RefusedError(400, "Empty", "`inputs` cannot be empty")
    if len(rows) > most:
        raise RefusedError(413, "Validation", f"batch size {len(rows)} > maximum allowed batch size {most}")
    for number, row in enumerate(rows):
        if len(row) != 1 + is_pair:
            wants, has = ("pairs", "one text") if is_pair else ("single texts", "a pair")
            form = f"Several {'pairs' if is_pair else 'texts'} are {body.several[is_pair]}"
            raise RefusedError(422, "Validation", f"this student takes {wants}, and input {number} is {has}. {form}")
        # Checked before tokenization, whose time grows with the text although only the first tokens are used.
        if max(map(len, row)) > MAX_CHARACTERS:
            raise RefusedError(413, "Validation", f"input {number} has more than {MAX_CHARACTERS:,} characters")
        if not has_text(row):
            raise RefusedError(422, "Validation", f"input {number} contains {BLANK}")
    return Texts([row[0] for row in rows], [row[1] for row in rows] if is_pair else None)


def _in_words(kind: type[Body], problem: Any) -> str:
    field = str(problem["loc"][0]) if problem["loc"] else ""
    if field == "inputs" and problem["type"] != "missing":
        return f"`inputs` must be {kind.shape}"
    return f"`{field}`: {problem['msg']}" if field else problem["msg"]

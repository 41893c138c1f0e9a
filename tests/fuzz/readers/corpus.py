"""Documents of a corpus in text, JSON lines and Parquet."""

from pipeline.sources.corpus import Documents, FilePart
from pipeline.tasks.task import Corpus
from tests.fuzz.files import FIXTURES, of_a_kind, seeds, written

COVERS = ("pipeline.sources.corpus",)
KINDS = (".txt", ".jsonl", ".parquet")
CORPUS = Corpus(name="own", columns=("text", "sentence1"))
SEEDS = seeds(
    KINDS,
    {
        ".txt": ["\ufeffone\n\ntwo é\r\n".encode()],
        ".jsonl": [b'{"text": "one"}\n\n{"text": "two", "more": [1]}\n'],
        ".parquet": [next((FIXTURES / "variants").rglob("validation*.parquet")).read_bytes()],
    },
)


def read(data: bytes) -> None:
    kind, content = of_a_kind(data, KINDS)
    part = FilePart(written(f"corpus{kind}", content), CORPUS)
    documents = Documents("fuzzed", (part,), part.num_rows)
    for _ in documents.read(0, documents.num_documents):
        pass

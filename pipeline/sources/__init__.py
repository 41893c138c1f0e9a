"""Rows of a task, checked before anything expensive starts, and documents of a corpus."""

from pipeline.sources.corpus import Documents, load_documents
from pipeline.sources.source import ROWS_AT_ONCE, Source, load_source, load_word_source, rows_sha256, sentences

__all__ = [
    "ROWS_AT_ONCE",
    "Documents",
    "Source",
    "load_documents",
    "load_source",
    "load_word_source",
    "rows_sha256",
    "sentences",
]

"""Rows of a task, checked before anything expensive starts, and documents of a corpus, checked as they are read."""

from pipeline.sources.corpus import Documents, load_documents
from pipeline.sources.source import Source, load_source, read_texts, rows_sha256, sentences

__all__ = ["Documents", "Source", "load_documents", "load_source", "read_texts", "rows_sha256", "sentences"]

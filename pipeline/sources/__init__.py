"""Rows of a task, from the hub or from local files, checked before anything expensive starts."""

from pipeline.sources.source import Source, load_source, read_texts, rows_sha256, sentences

__all__ = ["Source", "load_source", "read_texts", "rows_sha256", "sentences"]

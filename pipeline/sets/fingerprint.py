"""The settings that decide a set's content, as a hash, and which of them all its versions share."""

from pipeline.record_file import json_sha256
from pipeline.sets.record_parts import Setting


def shared_settings(settings: dict[str, Setting]) -> dict[str, Setting]:
    """The settings apart from those that name rows: the same for all versions of a set."""
    return {key: value for key, value in settings.items() if not key.startswith("source.")}


def fingerprint(settings: dict[str, Setting]) -> str:
    """SHA-256 of the settings, independent of their order."""
    return json_sha256(settings)

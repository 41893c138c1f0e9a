"""``python -m pipeline`` is ``distill``."""

from pipeline.cli import app

app()

"""``python -m distill`` is ``distill``."""

from distill.commands import app

app()

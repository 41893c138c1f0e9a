"""Imports the answers of any teacher from a file as a logit set, without transformers and torch."""

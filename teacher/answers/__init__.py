"""Answers of any teacher, from a file, as a logit set: needs neither transformers nor torch."""

"""Pretraining a student on a masked LM's predictions."""

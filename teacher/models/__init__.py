"""Loads models of transformers and runs them in batches."""

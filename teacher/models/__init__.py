"""Models from transformers: loading them, and running them in batches."""

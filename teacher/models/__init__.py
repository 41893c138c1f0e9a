"""Loading models from transformers, and asking them in batches."""

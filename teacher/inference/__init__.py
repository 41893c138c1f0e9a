"""Teachers, loaded and asked in batches."""

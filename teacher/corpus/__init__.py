"""A corpus cut into sequences, with words masked."""

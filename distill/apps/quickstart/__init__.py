"""``distill quickstart``: from one file of rows to a student beside baselines."""

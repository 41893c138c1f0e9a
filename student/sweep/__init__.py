"""``distill sweep``: many students from one logit set, compared."""

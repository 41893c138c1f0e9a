"""Students by the kind of rows that they learn from."""

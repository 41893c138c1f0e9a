"""``distill export``: a student in other forms."""

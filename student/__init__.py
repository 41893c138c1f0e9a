"""Stage two: small students trained from stored logits, with no teacher in memory."""

"""Students that label words: trained, scored, and asked."""

"""Training a student from logit sets."""

"""Writing what a teacher says as a logit set."""

"""A student's answers in bulk: of a file into a file, of lines as they arrive."""

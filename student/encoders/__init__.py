"""The encoders of students: a file for each, with its module."""

"""Variants of a task's training rows, to be labelled by the teacher."""

"""``distill results``: teachers, sets, students and what they are compared with, task by task, and their tables."""

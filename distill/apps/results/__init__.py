"""``distill results``: teachers, sets, students and baselines, task by task, and tables that compare them."""

"""``distill sweep --experiment``: teachers, students and baselines, task by task, and tables that compare them."""

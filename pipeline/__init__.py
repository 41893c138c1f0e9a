"""What both stages share: tasks, sources, text, logit sets, queries, training."""

"""Text without gold, as rows that a task's teacher labels."""

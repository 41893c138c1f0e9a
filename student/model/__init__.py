"""The student: tables, encoders, heads, weights."""

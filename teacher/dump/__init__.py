"""Stores a teacher's outputs as a logit set."""

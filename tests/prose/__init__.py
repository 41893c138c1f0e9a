"""Measures the prose that people read: pages, messages, docstrings and comments."""

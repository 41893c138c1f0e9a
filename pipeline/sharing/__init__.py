"""Shares logit sets: push, pull, sets without text, and joining them with your own texts."""

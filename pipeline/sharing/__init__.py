"""Handing logit sets to other people: push, pull, sets without text, and joining them with your own texts."""

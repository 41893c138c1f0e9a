"""Vectors of tokens that were trained on sentences, from which students start by default. See its README.md."""

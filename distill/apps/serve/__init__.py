"""Serves students over HTTP with the APIs of text-embeddings-inference and of the hub, and a page for people."""

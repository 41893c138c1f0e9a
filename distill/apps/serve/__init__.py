"""A student behind HTTP: text-embeddings-inference's API, the hub's, and a page for people."""

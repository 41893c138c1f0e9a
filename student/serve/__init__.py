"""A student behind HTTP: text-embeddings-inference's API, and the hub's."""

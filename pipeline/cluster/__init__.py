"""More than one machine: which job of a launcher this is, and workers on a Ray cluster. Knows nothing of sets."""

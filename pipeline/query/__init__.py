"""Queries over sets: views, the catalog, comparisons, mixtures and selected rows."""

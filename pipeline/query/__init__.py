"""Questions to sets: views, the catalog, comparisons, mixtures and chosen rows."""

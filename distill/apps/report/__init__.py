"""HTML pages about sets, runs and sweeps, with pictures."""

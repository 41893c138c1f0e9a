"""Writes HTML pages with charts about sets, runs and sweeps."""

"""Products built on the two stages."""

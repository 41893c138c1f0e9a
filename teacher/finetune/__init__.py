"""Fine-tunes teachers."""

"""Fine-tuning teachers."""

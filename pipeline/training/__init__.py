"""What every kind of training shares: its steps, its checkpoints, its record."""

"""What the weights of a student are before training."""

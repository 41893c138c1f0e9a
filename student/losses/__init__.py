"""What students learn by: losses of answers, of masked words, of vectors and of layers."""

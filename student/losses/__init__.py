"""The losses of students: for logits, masked words, vectors and layers."""

"""SQL over logits: the macros, and the gate that keeps queries read-only."""

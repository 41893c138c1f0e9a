"""Tasks and corpora: their YAML files, the meaning of their logits, and the scores of predictions."""

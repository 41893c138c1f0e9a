"""Tasks and corpora: what their YAML says, what their logits mean, and how answers are scored."""

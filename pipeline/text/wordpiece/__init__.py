"""BERT's WordPiece as compiled code, with the ids of `tokenizers` but many times as fast. See `compiled`."""

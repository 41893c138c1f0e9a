"""BERT's WordPiece as compiled code: the ids of `tokenizers`, many times as fast, see `compiled`."""

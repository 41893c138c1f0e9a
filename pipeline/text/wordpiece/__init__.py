"""BERT's WordPiece as compiled code: the ids of `tokenizers`, many times as fast.

What it leaves to the library is settled in `compatible` (which tokenizers), `characters` (which characters) and
`pipeline.text.reader` (which sentences).
"""

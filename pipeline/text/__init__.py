"""From text to token ids: the tokenizer of a set or a model, and the reader for all texts."""

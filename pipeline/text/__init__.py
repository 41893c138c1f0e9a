"""From text to token ids: the tokenizer of a set or a model, and the reader that everything goes through."""

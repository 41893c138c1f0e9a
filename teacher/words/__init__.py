"""Teachers that label words: asked, dumped, fine-tuned."""

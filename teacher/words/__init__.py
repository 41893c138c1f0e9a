"""Teachers that label words: what they are dumped into."""

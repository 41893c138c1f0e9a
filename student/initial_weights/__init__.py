"""The weights of a student before training. README.md is the card of the vectors that come with distill."""

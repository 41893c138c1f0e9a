"""The contract between the two stages, and the command line."""

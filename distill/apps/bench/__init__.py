"""How fast students and their peers read sentences, on this machine: what is read, and how it is timed and shown."""

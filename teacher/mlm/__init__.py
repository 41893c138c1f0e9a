"""A masked LM as a teacher: sequences from a corpus, masking, fine-tuning, dumping."""

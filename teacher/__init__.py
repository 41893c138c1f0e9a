"""Stage one: fine-tuned BERT teachers and the logit sets they write."""

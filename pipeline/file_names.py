"""The names of the files that several packages read or write."""

RUN_RECORD, SWEEP_RECORD, FINETUNE_RECORD = "run.json", "sweep.json", "finetune.json"
SET_RECORD = "distill.json"
# What transformers calls the files of a model.
CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE = "config.json", "model.safetensors", "tokenizer.json"
# A student for the engine, in the folder of its run.
STUDENT_FILE = "student.distill"

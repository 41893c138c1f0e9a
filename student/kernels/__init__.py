"""What a student's training step spends its time in, straight from the embedding tables and for ragged sequences.

The ordered products have two backends, each with the four functions of `reference`: `reference` is plain torch, for any
device and meant to be read; `compiled` is C++ for the CPU. `student.model.products` chooses one.
Adam on rows has two, `lazy_adam` in plain torch and `compiled_training`; `student.optimizer` chooses. The latter
has the loss, too, which in plain torch is `student.losses.logits.plain_loss`.
"""

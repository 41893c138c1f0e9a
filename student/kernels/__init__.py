"""The most expensive operations of a training step, directly on the embedding tables and for ragged sequences.

The ordered products have two backends with the same four functions. `reference` is readable plain torch for any device,
and `compiled` is C++ for the CPU. `student.model.products` chooses one. Adam on rows also has two backends, `lazy_adam`
in plain torch and `compiled_training`, between which `student.optimizer` chooses. The latter also contains the loss,
whose plain torch version is `student.losses.logits.plain_loss`. `compiled_alignment` reads aligned pairs, whose plain
torch version is in `student.model.aligned`.
"""

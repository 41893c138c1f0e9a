"""The most expensive operations of a training step, directly on the embedding tables and for ragged sequences.

The ordered products have two backends with the same four functions. `reference` is readable plain torch for any
device, and `native` is C++ for the CPU. `student.encoders.products` chooses one. Adam on rows also has two backends,
`lazy_adam` in plain torch and `native_training`, between which `student.row_adam` chooses. The latter also contains the
loss, whose plain torch version is `student.losses.logit_losses.plain_loss`. `native_sequences` reads aligned
pairs and recurrences, whose plain torch versions are in `student.encoders`.
"""

"""Ordered matrix products straight from the embedding tables, for ragged sequences: three backends, one interface.

`reference` is plain torch, always there and meant to be read; `compiled` is C++ for the CPU; `gpu` is Triton. Each has
the four functions of `reference`, with the same shapes. `student.model.products` chooses one.
"""

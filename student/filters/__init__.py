"""TED's filters: what of a teacher's layers matters for a task, learnt from stored states (Liang et al. 2023)."""

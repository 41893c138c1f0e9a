"""A logit set as one HTML page with pictures; runs and sweeps are `student.report`'s, of the same parts."""

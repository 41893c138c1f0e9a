"""A logit set as one HTML page with pictures; runs and sweeps are `distill.apps.report`'s, of the same parts."""

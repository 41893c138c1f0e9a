"""Several predictors that answer one after another, each what the one before it is not sure of."""

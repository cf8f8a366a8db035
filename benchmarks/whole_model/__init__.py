"""A whole model with one optimizer, or with one for its hidden matrices and another for the rest."""

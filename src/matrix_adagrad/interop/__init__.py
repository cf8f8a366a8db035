"""Interoperability with other trainers and optimizers: one module each, which needs that package installed."""

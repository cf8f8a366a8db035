"""Other people's trainers and optimizers: a module for each, which needs that package to be installed."""

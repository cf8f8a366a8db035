"""Other people's trainers: a module for each, which needs that package to be installed."""

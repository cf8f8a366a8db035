"""A training step of embedding tables: its time, where that goes, and on a machine that others use too."""

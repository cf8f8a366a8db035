"""Data that tests, demos and examples train on: MovieLens 100K, synthetic clicks, and text that ships with Python."""

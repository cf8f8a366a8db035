"""Data that tests, demos and examples train on: MovieLens 100K, and text that ships with Python."""

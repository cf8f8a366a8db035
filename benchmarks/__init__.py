"""Benchmarks of speed, memory and quality. Each is a command: ``python -m benchmarks.<name>``."""

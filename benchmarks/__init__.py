"""What things cost, and whether advice is good: each file is a command, ``python -m benchmarks.<name>``."""

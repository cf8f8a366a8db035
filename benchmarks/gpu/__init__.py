"""The Triton backend on GPUs: what it compiles to, which bytes it moves, and, where there is a device, how fast it is."""

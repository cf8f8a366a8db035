"""The Triton backend on GPUs: what it compiles to, which bytes it moves, and how fast it is on a device."""

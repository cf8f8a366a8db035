"""Checkpoints of a run on any number of ranks: written by `torch.distributed.checkpoint`, and never half.

A checkpoint gets its name when all of it is on the disk, with a digest of every file; one that was cut off, or whose
bytes have changed since, is not used: the one before is. What a save that died has left is removed by the next one.
Reading a checkpoint runs no code of it. It can be loaded on another number of ranks, and in another layout, than it was
saved on.
"""

from matrix_adagrad.checkpoints.run import Checkpoints, missing_from

__all__ = ["Checkpoints", "missing_from"]

"""Checkpoints of a run on any number of ranks, written by `torch.distributed.checkpoint`.

A checkpoint appears under its name only when all of it is on disk, with a digest of every file. If it is incomplete, or
its bytes have changed, `Checkpoints.resume` falls back to the one before. The next save removes what a killed save left
behind. Reading a checkpoint executes nothing in it. It may be loaded with a different number of ranks and in a
different layout.
"""

from matrix_adagrad.checkpoints.manager import Checkpoints, missing_from, saved_shapes

__all__ = ["Checkpoints", "missing_from", "saved_shapes"]

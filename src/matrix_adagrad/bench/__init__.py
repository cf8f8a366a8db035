"""Time and memory of a step next to peers: everything interleaved in one process, as ratios of medians."""

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler, which measures memory, would tell of every start

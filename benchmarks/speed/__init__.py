"""Time and memory of a step compared with peers, interleaved in one process, as ratios of medians."""

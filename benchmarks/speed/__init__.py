"""Time and memory of a step next to peers: everything interleaved in one process, as ratios of medians."""

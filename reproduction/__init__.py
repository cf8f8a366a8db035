"""The reproduction of the paper: ``python -m reproduction``, or ``make reproduce``.

One folder per experiment: `games`, `structure`, `movielens` and `networks`. In each, modules with a typed ``Config``
and a pure ``run(config)`` do the work, ``sweep`` says which of their runs, called cells, are needed, ``evidence`` reads
them, ``claims`` judges the paper by them, and ``report`` shows them. Around them, `pool` runs cells, `cells` stores
them, and `runner` writes everything up.
"""

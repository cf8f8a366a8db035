"""The reproduction of the paper: ``python -m reproduction``, or ``make reproduce``.

Each experiment is a module with a typed ``Config`` and a pure ``run(config)``: `factorisation`, `mlp`, `motivating`,
`theorems` and `identities`. `sweep` says which of their runs, called cells, are needed; `pool` runs them, `cells`
stores them, `evidence` reads them, `claims` judges the paper by them, and `report` shows them.
"""

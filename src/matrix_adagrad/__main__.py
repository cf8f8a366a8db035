"""``python -m matrix_adagrad`` is ``matrix-adagrad``."""

import sys

from matrix_adagrad.cli import main

if __name__ == "__main__":
    sys.exit(main())

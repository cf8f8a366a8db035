"""Processes of their own, which import `reproduction` from this checkout."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATHS = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, PATHS))}
COMMAND = [sys.executable, "-m", "reproduction"]

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# As for `python benchmarks/NAME.py`, whose own folder Python puts first.
sys.path.insert(0, str(BENCHMARKS))

"""The engine's mock model, for sweeps that need no weights."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent.parent / "engine"))

"""Tokenizers for the tests of old code: the ones the renderer is tested with."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "chat"))

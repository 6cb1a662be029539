"""The version of lazytrace, as traces state it."""

from __future__ import annotations

__version__ = "0.1.0"

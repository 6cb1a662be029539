"""The user's frames above a launch, when they were asked for (``stacks=True``)."""

from __future__ import annotations

import sys
from types import FrameType

from lazytrace.records import Frame

_DEPTH = 8
_OURS = ("lazytrace", "triton", "torch")


def call_site() -> tuple[Frame, ...]:
    """Up to eight frames, innermost first, without lazytrace's, Triton's and torch's own."""
    frames: list[Frame] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(frames) < _DEPTH:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in _OURS:
            code = frame.f_code
            frames.append(Frame(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(frames)

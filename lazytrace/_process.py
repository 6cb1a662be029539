"""The one piece of process-wide state: which tracer is active. Patches are process-wide too."""

from __future__ import annotations

from lazytrace._tracer import Active

ACTIVE = Active()

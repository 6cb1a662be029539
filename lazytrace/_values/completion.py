"""Which submitted work is known to be done, from the program's own synchronisations.

Launches and replays are numbered; what was submitted before a synchronisation began is done when
it returns. No stream has to be asked for that.
"""

from __future__ import annotations

import attrs

from lazytrace._capture.pending import Capture, Run
from lazytrace._device.runtime import Stream


@attrs.frozen
class Progress:
    """The numbers of the latest launch and the latest replay."""

    launch: int = -1
    replay: int = 0


_NOTHING = Progress()


@attrs.define
class Completion:
    """What is done, by device and by stream."""

    _devices: dict[int, Progress] = attrs.field(factory=dict)
    _streams: dict[Stream, Progress] = attrs.field(factory=dict)

    def device_synchronized(self, device: int, before: Progress) -> None:
        """All work of a device that was submitted up to ``before`` is done."""
        self._devices[device] = before

    def stream_synchronized(self, stream: Stream, before: Progress) -> None:
        """All work of one stream that was submitted up to ``before`` is done."""
        self._streams[stream] = before

    def run_is_done(self, run: Run) -> bool:
        """Whether every launch of an eager run is known to be done."""
        done = self._devices.get(run.device, _NOTHING).launch
        if run.last_id <= done:
            return True
        return run.last_id <= self._streams.get((run.device, run.stream), _NOTHING).launch

    def capture_is_done(self, capture: Capture) -> bool:
        """Whether the latest replay of a capture is known to be done."""
        done = self._devices.get(capture.device, _NOTHING).replay
        if capture.replay_number <= done:
            return True
        stream = (capture.device, capture.replay_stream)
        return capture.replay_number <= self._streams.get(stream, _NOTHING).replay

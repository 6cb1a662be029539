"""Counts a launch that passes what its kernel's last one passed: the hot path, in one function."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from torch._C import _is_torch_function_mode_enabled as _function_mode_is_on

from lazytrace._capture.recognise import ArgTest, define
from lazytrace.records import ArgState

if TYPE_CHECKING:
    from lazytrace._capture.describe import ArgSet
    from lazytrace._capture.kernels import KernelEntry
    from lazytrace._capture.recorder import Recorder

Repeat = Callable[[Any, int, tuple[Any, ...]], bool]

# What a launch cannot see itself (a mark, a pause, an autotune trial, a flush) changes the queue's
# token. Everything else that makes a run is compared here.
_REPEAT = """
def make({parameters}):
    def repeat(grid, stream, args):
        if len(args) != {length} or function_mode_is_on():
            return False
        {unpack}
        if not ({condition}):
            return False
        run = entry.last
        if (
            run.args is not described
            or run.token is not queue.token
            or run.stream != stream
            or run.grid != grid
            or run.thread != get_ident()
            or (
                stream
                and (run.capture is not None or capturing(stream))
                and capture_at(stream) is not run.capture
            )
        ):
            recorder.repeated(entry, grid, stream, described)
            return True
        number = next(ids)
        if number != run.id + run.count:  # another thread has launched in between
            recorder.repeated(entry, grid, stream, described, number)
            return True
        run.count += 1
        recorder.last_id = number
        if run.token is not queue.token or entry.last is not run:
            queue.new.append(run)  # another thread may have written the run for the last time
        capture = run.capture
        if capture is not None:
            capture.launches += 1
            capture.groups[described.id].launches += 1
            return True
        if entry.samples_left and run.values is pending:
            entry.samples_left -= 1
        if number >= recorder.write_at:
            recorder.write_point()
        return True
    return repeat
"""


def repeat_of(recorder: Recorder, entry: KernelEntry, described: ArgSet, test: ArgTest) -> Repeat:
    """A function that records one more launch of a kernel with certain arguments.

    It takes the launch's grid, stream and arguments, and returns False if they are others.
    """
    made: Repeat = define(
        _REPEAT,
        test,
        {
            "capture_at": recorder.graphs.capture_at,
            "capturing": recorder.runtime.capturing,
            "described": described,
            "entry": entry,
            "function_mode_is_on": _function_mode_is_on,
            "get_ident": get_ident,
            "ids": recorder.ids,
            "pending": ArgState.PENDING,
            "queue": recorder.queue,
            "recorder": recorder,
        },
    )
    return made

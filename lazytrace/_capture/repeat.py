"""Counts a launch that repeats its kernel's last one: the hot path, all in one function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

from torch._C import _is_torch_function_mode_enabled as _function_mode_is_on

from lazytrace.records import ArgState

if TYPE_CHECKING:
    from lazytrace._capture.kernels import KernelEntry
    from lazytrace._capture.pending import Run
    from lazytrace._capture.recorder import Recorder

Repeat = Callable[[Any, Any, int, tuple[Any, ...]], bool]


def repeat_of(
    recorder: Recorder,
    entry: KernelEntry,
    run: Run,
    recognised: Callable[[Sequence[Any]], bool],
) -> Repeat:
    """A function that counts one more launch of a run, or returns False if it is another launch.

    What a launch cannot see itself (a mark, a pause, an autotune trial, a flush) changes the
    queue's token. Everything else that makes a run is compared here.
    """
    queue, capture_at, ids = recorder.queue, recorder.graphs.capture_at, recorder.ids
    token, kernel_ref = queue.token, entry.ref
    own_grid, own_stream, own_thread, own_capture = run.grid, run.stream, run.thread, run.capture
    group = None if own_capture is None else own_capture.groups[run.args.id]
    sampled = run.values is ArgState.PENDING and entry.samples_left is not None

    def repeat(kernel: Any, grid: Any, stream: int, args: tuple[Any, ...]) -> bool:
        if (
            queue.token is not token
            or stream != own_stream
            or grid != own_grid
            or get_ident() != own_thread
            or kernel_ref() is not kernel
            or (stream and capture_at(stream) is not own_capture)
            or _function_mode_is_on()
            or not recognised(args)
        ):
            return False
        number = next(ids)
        if number != run.id + run.count:  # another thread has launched in between
            recorder.launched(kernel, grid, stream, args, number=number)
            return True
        run.count += 1
        recorder.last_id = number
        if queue.token is not token or entry.last is not run:
            queue.new.append(run)  # another thread may have written the run for the last time
        if own_capture is not None and group is not None:
            own_capture.launches += 1
            group.launches += 1
            return True
        if sampled and entry.samples_left:
            entry.samples_left -= 1
        if number >= recorder.write_at:
            recorder.write_point()
        return True

    return repeat

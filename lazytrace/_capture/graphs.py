"""Follows CUDA graph captures and replays, through CUDAGraph's own methods."""

from __future__ import annotations

import itertools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from lazytrace._capture.containment import Containment
from lazytrace._capture.patches import Patches
from lazytrace._capture.pending import Capture, PendingQueue
from lazytrace._device.runtime import Runtime
from lazytrace.records import CaptureState

_FOREIGN_KEPT = 64


@attrs.define(eq=False)
class GraphEntry:
    """One graph object: its number, its name, its captures so far and the current one."""

    number: int
    ref: weakref.ref[Any]
    name: str | None = None
    epochs: int = 0
    capture: Capture | None = None


@attrs.define(eq=False)
class GraphWatch:
    """Which captures are open, which graph each one makes, and how often it was replayed.

    Open captures are found by CUDA's capture id, which streams that joined a capture share.
    """

    runtime: Runtime
    queue: PendingQueue
    containment: Containment
    ended: Callable[[Capture], None]  # the write point at the end of a capture
    replayed: Callable[[Capture], None]  # after a counted replay
    replay_number: int = 0
    open: dict[int, Capture] = attrs.field(factory=dict)
    _replayer: int = 0  # the thread that replayed last
    _foreign: dict[int, Capture] = attrs.field(factory=dict)
    _origins: dict[int, Capture] = attrs.field(factory=dict)  # by the stream they began on
    _graphs: dict[int, GraphEntry] = attrs.field(factory=dict)
    _graph_numbers: Iterator[int] = attrs.field(factory=itertools.count)
    _capture_numbers: Iterator[int] = attrs.field(factory=itertools.count)
    _replays: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))

    def install(self, patches: Patches) -> None:
        """Wraps methods of the graph class that is in force now."""
        from torch.cuda import CUDAGraph

        for name, before, after, on_error in (
            ("capture_begin", self._beginning, self._began, None),
            ("capture_end", None, self._ended, self._failed),
            ("replay", None, self._replayed, None),
            ("reset", None, self._was_reset, None),
            ("raw_cuda_graph", None, self._was_shown, None),
        ):
            patches.wrap(CUDAGraph, name, self._wrapper(patches, before, after, on_error))

    def _wrapper(
        self,
        patches: Patches,
        before: Callable[[], None] | None,
        after: Callable[[Any], None],
        on_error: Callable[[Any], None] | None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        contain = self.containment.run

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def method(graph: Any, *args: Any, **kwargs: Any) -> Any:
                if not patches.active:
                    return original(graph, *args, **kwargs)
                if before is not None:
                    contain("graph watch", before)
                try:
                    result = original(graph, *args, **kwargs)
                except BaseException:
                    if on_error is not None:
                        contain("graph watch", on_error, graph)
                    raise
                contain("graph watch", after, graph)
                return result

            return method

        return make

    # What the hook asks

    def capture_at(self, stream: int) -> Capture | None:
        """The open capture that a stream is part of; one begun elsewhere gets books of its own.

        Not for the legacy default stream, which cannot be captured. Asks CUDA only where it must:
        the stream on which a capture was begun through torch is known.
        """
        return self._origins.get(stream) or self._asked(stream)

    def _asked(self, stream: int) -> Capture | None:
        if not self.runtime.capturing(stream):
            return None
        cuda_id = self.runtime.capture_id(stream)
        if cuda_id is None:
            # An invalidated capture no longer has an id: take the one that this thread began.
            return self._of_this_thread() or self._foreign_capture(-1, None, stream)
        return self.open.get(cuda_id) or self._foreign_capture(cuda_id, cuda_id, stream)

    def _foreign_capture(self, key: int, cuda_id: int | None, stream: int) -> Capture:
        """A capture begun past torch.cuda.CUDAGraph: its end will not be seen.

        It is never asked for again: its stream may be destroyed by then, and to name a destroyed
        stream to CUDA is fatal. The latest ones keep their kernels from being unloaded.
        """
        capture = self._foreign.get(key)
        if capture is None:
            while len(self._foreign) >= _FOREIGN_KEPT:
                self._foreign.pop(next(iter(self._foreign))).kernels.clear()
            capture = self._foreign[key] = self._new(None, cuda_id, stream, foreign=True)
            capture.state = CaptureState.CAPTURED
        return capture

    def _of_this_thread(self) -> Capture | None:
        me = threading.get_ident()
        for capture in list(self.open.values()):
            if capture.thread == me:
                return capture
        return None

    def thread_is_capturing(self) -> bool:
        """Whether the calling thread began a capture that is still open."""
        return self._of_this_thread() is not None

    # What the wrappers tell

    def _beginning(self) -> None:
        # Host only. From now on no flush of another thread may touch this stream.
        device = self.runtime.current_device()
        self.runtime.note_stream(device, self.runtime.current_stream(device))

    def _began(self, graph: Any) -> None:
        stream = self.runtime.current_stream(self.runtime.current_device())
        cuda_id = self.runtime.capture_id(stream)
        entry = self.entry(graph)
        capture = self._new(entry, cuda_id, stream, foreign=False)
        entry.capture = capture
        self.open[self._key(capture)] = capture
        self._origins[stream] = capture

    def _ended(self, graph: Any) -> None:
        capture = self._close(graph)
        if capture is None:
            return
        error = sys.exc_info()[1]
        if error is not None and id(error) != capture.exception_at_begin:
            # `with torch.cuda.graph(g)` ends the capture while its body's exception passes.
            capture.state = CaptureState.FAILED
        else:
            capture.state = CaptureState.CAPTURED
            capture.graph_storages = self._graph_storages(graph, capture)
        self._finish(capture)

    def _failed(self, graph: Any) -> None:
        capture = self._close(graph)
        if capture is not None:
            capture.state = CaptureState.FAILED
            capture.gone = True  # there is no graph that could run it
            self._finish(capture)

    def _replayed(self, graph: Any) -> None:
        entry = self._graphs.get(id(graph))
        if entry is None or entry.capture is None or entry.ref() is not graph:
            return
        device = self.runtime.current_device()
        stream = self.runtime.current_stream(device)
        if self.runtime.capturing(stream):
            entry.capture.copied = True
            return  # a child of the capture that is open: nothing ran
        capture = entry.capture
        if stream != capture.replay_stream or self._replayer != threading.get_ident():
            self._replayer = threading.get_ident()
            self.runtime.note_stream(device, stream)
        capture.replay_number = self.replay_number = next(self._replays)
        capture.replay_stream = stream
        capture.replays += 1
        if capture.replays == 1:
            capture.state = CaptureState.CAPTURED
            self.queue.armed.append(capture)
        self.replayed(capture)

    def _was_reset(self, graph: Any) -> None:
        entry = self._graphs.get(id(graph))
        if entry is not None and entry.ref() is graph:
            self._drop(entry)

    def _was_shown(self, graph: Any) -> None:
        """The program has the graph's handle: it may make graphs of its own from it."""
        entry = self._graphs.get(id(graph))
        if entry is not None and entry.capture is not None and entry.ref() is graph:
            entry.capture.copied = True

    # Bookkeeping

    def entry(self, graph: Any) -> GraphEntry:
        """The entry of a graph object, made when it is first met."""
        entry = self._graphs.get(id(graph))
        if entry is None or entry.ref() is not graph:
            key = id(graph)

            def gone(_: object) -> None:
                # Runs where the graph dies, perhaps inside a capture or a destructor: enqueue only.
                dead = self._graphs.pop(key, None)
                if dead is not None:
                    self._drop(dead)

            entry = GraphEntry(next(self._graph_numbers), weakref.ref(graph, gone))
            self._graphs[key] = entry
        return entry

    def name(self, graph: Any, name: str) -> None:
        """Names a graph, also in what the trace already says of its current capture."""
        entry = self.entry(graph)
        entry.name = name
        if entry.capture is not None:
            entry.capture.name = name
            if entry.capture.state is not CaptureState.OPEN:
                self.queue.ended.append(entry.capture)

    def forget(self) -> None:
        """Closes every capture's books: what was not replayed by now counts as never replayed."""
        for entry in list(self._graphs.values()):
            if entry.capture is not None and entry.ref() is not None:
                entry.capture.copied = True  # the graph itself lives on, unwatched
            self._drop(entry)
        self._graphs.clear()

    def _drop(self, entry: GraphEntry) -> None:
        capture, entry.capture = entry.capture, None
        if capture is not None:
            self._shut(capture)
            self.queue.gone.append(capture)

    def _new(
        self, entry: GraphEntry | None, cuda_id: int | None, stream: int, *, foreign: bool
    ) -> Capture:
        error = sys.exc_info()[1]
        epoch = 0
        if entry is not None:
            epoch, entry.epochs = entry.epochs, entry.epochs + 1
        return Capture(
            id=next(self._capture_numbers),
            graph=next(self._graph_numbers) if entry is None else entry.number,
            name=f"capture {cuda_id}" if entry is None else entry.name,
            epoch=epoch,
            cuda_id=cuda_id,
            stream=stream,
            device=self.runtime.current_device(),
            thread=threading.get_ident(),
            time_ns=time.time_ns(),
            foreign=foreign,
            owner=None if entry is None else entry.ref,
            exception_at_begin=None if error is None else id(error),
        )

    def _key(self, capture: Capture) -> int:
        return -2 - capture.id if capture.cuda_id is None else capture.cuda_id

    def _close(self, graph: Any) -> Capture | None:
        """The open capture of a graph, taken off the open ones."""
        entry = self._graphs.get(id(graph))
        capture = entry.capture if entry is not None and entry.ref() is graph else None
        if capture is None or capture.state is not CaptureState.OPEN:
            return None
        self._shut(capture)
        return capture

    def _shut(self, capture: Capture) -> None:
        self.open.pop(self._key(capture), None)
        if self._origins.get(capture.stream) is capture:
            self._origins.pop(capture.stream, None)

    def _finish(self, capture: Capture) -> None:
        self.queue.ended.append(capture)
        self.ended(capture)
        capture.kernels.clear()  # only now: what the trace says of a kernel may need it

    def _graph_storages(self, graph: Any, capture: Capture) -> tuple[int, ...] | None:
        """The storages among the capture's arguments that lie in the graph's own pool."""
        ranges = self.runtime.graph_ranges(graph)
        if ranges is None:
            return None
        inside = {
            view.storage
            for group in capture.groups.values()
            for _, view in group.args.views
            if any(start <= view.data_ptr < end for start, end in ranges)
        }
        return tuple(sorted(inside))

    def finish_open(self, done: Callable[[], None]) -> bool:
        """Sees this process's open captures to their end although the class is unpatched.

        Each graph that is being captured gets a ``capture_end`` of its own, which removes itself.
        ``done`` is called after the last one. False if no capture is open.
        """
        graphs = [
            capture.owner() for capture in list(self.open.values()) if capture.owner is not None
        ]
        alive = [graph for graph in graphs if graph is not None]
        for graph in alive:
            self._finish_graph(graph, done)
        return bool(alive)

    def _finish_graph(self, graph: Any, done: Callable[[], None]) -> None:
        ref = weakref.ref(graph)  # the graph must not keep itself alive
        contain = self.containment.run

        def capture_end(*args: Any, **kwargs: Any) -> Any:
            graph = ref()
            if graph is None:  # unreachable: the method was looked up on the graph
                return None
            del graph.capture_end
            after = self._failed
            try:
                result = graph.capture_end(*args, **kwargs)
                after = self._ended
            finally:
                contain("graph watch", after, graph)
                if not self.open:
                    done()
            return result

        graph.capture_end = capture_end

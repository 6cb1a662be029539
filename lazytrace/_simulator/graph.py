"""The simulated CUDA graphs: torch._C._CUDAGraph, and torch.cuda.CUDAGraph on top of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lazytrace._simulator.driver import active_device
from lazytrace._simulator.memory import Pool, PoolId
from lazytrace._simulator.nodes import ChildNode, Node
from lazytrace._simulator.rules import Capture, CaptureMode

_NO_CAPTURE = "Called CUDAGraph::{} without a preceding successful capture."


class BaseGraph:
    """Stands in for torch._C._CUDAGraph: what C++ does, past any shim of Python.

    It holds no storage but the bytes of its own pool.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        self._device = active_device()
        self._keep_graph = bool(keep_graph)
        self._capture: Capture | None = None
        self._pool: Pool | None = None
        self._nodes: tuple[Node, ...] | None = None
        self._instantiated = False

    def capture_begin(self, pool: PoolId | None = None, capture_error_mode: str = "global") -> None:
        """Start a capture on the current stream."""
        if self._nodes is not None or self._capture is not None:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. "
                "To capture a new graph, create a new instance."
            )
        try:
            mode = CaptureMode(capture_error_mode)
        except ValueError:
            raise RuntimeError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, "
                f"got {capture_error_mode}"
            ) from None
        device = self._device
        memory = device.pool(pool or device.new_pool_id(shared=False))
        self._capture = device.begin_capture(self, memory, mode)
        self._pool = memory

    def capture_end(self) -> None:
        """End the capture; raises if something invalidated it."""
        capture = self._capture
        if capture is None:
            raise RuntimeError("Called CUDAGraph::capture_end without a capture in progress.")
        try:
            self._device.end_capture(capture)
        finally:
            if capture not in self._device.rules.open:
                self._capture = None
        self._nodes = tuple(capture.nodes)
        self._instantiated = not self._keep_graph

    @staticmethod
    def get_currently_capturing_graph() -> BaseGraph:
        """The graph that the current stream captures into."""
        capture = active_device().current_stream.capture
        if capture is None:
            raise RuntimeError("The current stream is not capturing.")
        graph: BaseGraph = capture.graph
        return graph

    def instantiate(self) -> None:
        """Make a captured graph ready to replay."""
        self._captured("instantiate")
        self._instantiated = True

    def replay(self) -> None:
        """Run the graph on the current stream, or make it a child of that stream's capture."""
        nodes = self._captured("replay")
        self._instantiated = True
        stream = self._device.current_stream
        if stream.capture is None:
            self._device.replay(nodes)
        elif self._pool is not None:
            stream.capture.add(stream, ChildNode(nodes, self._pool))

    def reset(self) -> None:
        """Drop the nodes and this graph's hold on its pool."""
        capture, self._capture = self._capture, None
        if capture is not None and capture in self._device.rules.open:
            self._device.abandon_capture(capture)
        self._nodes = None
        self._pool = None
        self._instantiated = False

    def pool(self) -> PoolId:
        """The id of the graph's memory pool."""
        self._captured("pool")
        if self._pool is None:
            raise RuntimeError(_NO_CAPTURE.format("pool"))
        return self._pool.id

    def raw_cuda_graph(self) -> int:
        """A handle of the graph, if it was kept."""
        if not self._keep_graph:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized "
                "with keep_graph=true"
            )
        self._captured("raw_cuda_graph")
        return id(self)

    def raw_cuda_graph_exec(self) -> int:
        """A handle of the executable graph."""
        self._captured("raw_cuda_graph_exec")
        if not self._instantiated:
            raise RuntimeError("You cannot access the raw cudaGraphExec_t before instantiate()")
        return id(self)

    def enable_debug_mode(self) -> None:
        """Nothing to switch."""

    def debug_dump(self, debug_path: str) -> None:
        """Write the nodes' names, one a line."""
        with open(debug_path, "w", encoding="utf-8") as dump:
            dump.writelines(f"{node.name}\n" for node in self._captured("debug_dump"))

    def _captured(self, call: str) -> tuple[Node, ...]:
        if self._nodes is None:
            raise RuntimeError(_NO_CAPTURE.format(call))
        return self._nodes


class CUDAGraph(BaseGraph):
    """Stands in for torch.cuda.CUDAGraph: Python shims that a tool may wrap."""

    def capture_begin(
        self,
        pool: PoolId | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Start a capture; input liveness is not checked."""
        super().capture_begin(pool=pool, capture_error_mode=capture_error_mode)

    def capture_end(self) -> None:
        """End the capture."""
        super().capture_end()

    def instantiate(self) -> None:
        """Make a captured graph ready to replay."""
        super().instantiate()

    def replay(self) -> None:
        """Run the graph on the current stream."""
        super().replay()

    def reset(self) -> None:
        """Drop what was captured."""
        super().reset()

    def pool(self) -> PoolId:
        """The id of the graph's memory pool."""
        return super().pool()


def nodes_of(graph: Any) -> Sequence[Node]:
    """The nodes that a graph has, or that its capture has so far."""
    if graph._capture is not None:
        return tuple(graph._capture.nodes)
    return graph._nodes or ()


def ranges_of(graph: Any) -> list[tuple[int, int]]:
    """Address ranges ``[start, end)`` of a graph's memory pool."""
    return [] if graph._pool is None else graph._pool.ranges()

"""Several threads, and forked children: ids never overlap, counts are exact, files are apart."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections import Counter

import case_kernels
import kernels
import pytest
import torch

import lazytrace
from lazytrace.testing import simulate

THREADS, LAUNCHES = 4, 400


@pytest.fixture
def light():
    """A simulation that executes nothing."""
    with simulate(execute=False) as simulation:
        yield simulation


@pytest.fixture
def hasty():
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def run_threads(bodies):
    """Runs the bodies at once; the first exception of any of them is raised here."""
    errors = []
    start = threading.Barrier(len(bodies))

    def guarded(body):
        start.wait()
        try:
            body()
        except Exception as error:  # noqa: BLE001 - raised again in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def launches_of(thread, tensor):
    """400 launches: runs of one to four, each thread with values of its own."""

    def body():
        for step in range(LAUNCHES):
            case_kernels.ignore[(1,)](tensor, None, 1000 * (thread + 1) + (step // 4) * 2)

    return body


def assert_all_there(records, expected):
    """Ids are 0, 1, 2... without a gap or an overlap, and every value has its count."""
    ids = [number for record in records for number in range(record.id, record.id + record.count)]
    assert sorted(ids) == list(range(sum(expected.values())))
    counts = Counter()
    for record in records:
        counts[record.args["value"].value] += record.count
    assert counts == expected


def expected_counts(threads=THREADS):
    return Counter(
        1000 * (thread + 1) + (step // 4) * 2
        for thread in range(threads)
        for step in range(LAUNCHES)
    )


@pytest.mark.core
def test_launches_of_several_threads_are_counted_exactly(light, hasty, tmp_path):
    """Four threads and one kernel: every launch once, in memory and in the file."""
    tensors = [torch.ones(2) for _ in range(THREADS)]
    with lazytrace.trace(tmp_path / "t.ndjson") as tracer:
        run_threads([launches_of(number, tensor) for number, tensor in enumerate(tensors)])
        records = tracer.records()
        assert tracer.problems() == []
    assert_all_there(records, expected_counts())
    assert_all_there(lazytrace.read(tracer.path).launches, expected_counts())
    storages = {}
    for record in records:
        storages.setdefault(record.thread, set()).add(record.args["x"].storage)
    assert all(len(found) == 1 for found in storages.values())


def test_asking_while_memory_forgets_raises_nothing(light, hasty):
    """max_records evicts what another thread is just reading."""
    x, stop = torch.ones(2), threading.Event()

    def launch():
        for step in range(1500):
            case_kernels.ignore[(1,)](x, None, 100 + step * 2)
        stop.set()

    with lazytrace.trace(max_records=5) as tracer:

        def ask():
            while not stop.is_set():
                assert len(tracer.records()) <= 6
                tracer.problems()

        run_threads([launch, ask, ask])
        assert [r.args["value"].value for r in tracer.records()] == [
            100 + step * 2 for step in range(1495, 1500)
        ]


@pytest.mark.parametrize("attempt", range(3))
def test_counts_are_exact_while_another_thread_asks(light, hasty, tmp_path, attempt):
    """records() and flush() in a loop beside launches: no launch is lost or counted twice."""
    tensors = [torch.ones(2) for _ in range(THREADS)]
    stop = threading.Event()
    launching = [launches_of(number, tensor) for number, tensor in enumerate(tensors)]
    left = [len(launching)]
    lock = threading.Lock()

    def counted(body):
        def run():
            try:
                body()
            finally:
                with lock:
                    left[0] -= 1
                    if not left[0]:
                        stop.set()

        return run

    with lazytrace.trace(tmp_path / "t.ndjson", eager_samples=None) as tracer:

        def ask():
            while not stop.is_set():
                tracer.flush()
                tracer.records()

        run_threads([*map(counted, launching), ask])
        records = tracer.records()
        assert tracer.problems() == []
    assert_all_there(records, expected_counts())
    assert_all_there(lazytrace.read(tracer.path).launches, expected_counts())


def test_a_capture_and_eager_launches_of_another_thread_stay_apart(light, hasty):
    """The other thread's launches are no part of the capture, and are not read by it."""
    x, y = torch.ones(2), torch.ones(2)
    graphs = []
    for value in (1001, 1008):  # threads that compile at once drop a kernel, perhaps in a capture
        case_kernels.ignore[(1,)](x, None, value)

    def capture():
        graphs.append(
            case_kernels.captured(
                lambda: [case_kernels.ignore[(1,)](x, None, 1000 + step) for step in range(200)],
                capture_error_mode="thread_local",
            )
        )

    def eager():
        for step in range(200):
            case_kernels.ignore[(1,)](y, None, 5000 + step)

    with lazytrace.trace() as tracer:
        run_threads([capture, eager])
        graphs[0].replay()
        torch.cuda.synchronize()
        captured = tracer.records(captured=True, expand=True)
        others = tracer.records(captured=False, expand=True)
    assert [record.args["value"].value for record in captured] == list(range(1000, 1200))
    assert [record.capture.index for record in captured] == list(range(200))
    assert {record.state.value for record in captured} == {"complete"}
    assert [record.args["value"].value for record in others] == list(range(5000, 5200))
    assert len({record.args["x"].storage for record in [*captured, *others]}) == 2


# Forks

fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def in_child(body):
    """Runs the body in a forked child and returns what it put into the pipe."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def target():
        try:
            sender.send(body())
        except Exception as error:  # noqa: BLE001 - the parent asserts on it
            sender.send(f"{type(error).__name__}: {error}")
        finally:
            sender.close()

    process = context.Process(target=target)
    process.start()
    assert receiver.poll(60), "the child hangs"
    answer = receiver.recv()
    process.join(60)
    assert process.exitcode == 0
    return answer


@fork
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kind", ["directory", "file", "memory"])
def test_a_forked_child_has_a_trace_of_its_own(light, tmp_path, kind):
    """The child's launches go to its own file, the parent's file has the parent's only."""
    out = {"directory": tmp_path, "file": tmp_path / "t.ndjson", "memory": None}[kind]
    x = torch.ones(2)
    with lazytrace.trace(out) as tracer:
        case_kernels.ignore[(1,)](x, None, 100)
        case_kernels.ignore[(1,)](x, None, 102)
        size = tracer.path.stat().st_size if out else 0

        def child():
            before = len(lazytrace.records())
            case_kernels.ignore[(1,)](x, None, 200)
            values = [record.args["value"].value for record in lazytrace.records()]
            path = tracer.path
            lazytrace.disable()
            return before, values, None if path is None else str(path), os.getpid()

        before, values, path, pid = in_child(child)
        assert (before, values) == (0, [200])
        if out:
            assert tracer.path.stat().st_size == size
            assert path != str(tracer.path)
            assert str(pid) in os.path.basename(path)
        case_kernels.ignore[(1,)](x, None, 104)
        assert [r.args["value"].value for r in tracer.records()] == [100, 102, 104]
    if out:
        trace = lazytrace.read(tracer.path)
        assert [record.args["value"].value for record in trace.launches] == [100, 102, 104]
        child_trace = lazytrace.read(path)
        assert [record.args["value"].value for record in child_trace.launches] == [200]
        assert child_trace.session.pid == pid != trace.session.pid
        assert len(list(tmp_path.glob("*.ndjson"))) == 2


@fork
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_capture_leaves_the_parents_capture_alone(light, tmp_path):
    """The parent's graph is complete; the child raises nothing when it asks."""
    x = torch.ones(2)
    with lazytrace.trace(tmp_path) as tracer:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            case_kernels.ignore[(1,)](x, None, 100)
            answer = in_child(lambda: (len(lazytrace.records()), lazytrace.flush().completed))
            case_kernels.ignore[(1,)](x, None, 102)
        graph.replay()
        torch.cuda.synchronize()
        records = tracer.records()
    assert answer == (0, 0)
    assert [record.args["value"].value for record in records] == [100, 102]
    assert {record.state.value for record in records} == {"complete"}


@fork
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_while_other_threads_launch_and_flush_hangs_nobody(light, hasty, tmp_path):
    """Children forked at any moment trace their own launch; the parent loses none of its."""
    x, stop = torch.ones(2), threading.Event()
    launched = [0]

    def launch():
        while not stop.is_set():
            case_kernels.ignore[(1,)](x, None, 100 + 2 * launched[0])
            launched[0] += 1

    def ask():
        while not stop.is_set():
            lazytrace.flush()

    def child():
        case_kernels.ignore_constexpr[(1,)](x, 7)
        return [record.kernel.name for record in lazytrace.records()]

    case_kernels.ignore_constexpr.warmup(x, 7, grid=(1,))
    with lazytrace.trace(tmp_path) as tracer:

        def forks():
            try:
                for _ in range(4):
                    assert in_child(child) == ["ignore_constexpr"]
            finally:
                stop.set()

        run_threads([launch, ask, forks])
        assert sum(record.count for record in tracer.records()) == launched[0]


def test_a_forked_child_keeps_the_mark_and_the_pause(simulated, tmp_path):
    """What the parent said of the launches that follow holds in the child too."""
    out = tmp_path / "traces"
    x = torch.ones(4)
    with lazytrace.trace(out):
        kernels.scale_[(1,)](x, 4, 2.0, BLOCK=4)
        lazytrace.mark("before the fork")
        with lazytrace.paused():
            child = os.fork()
            if child == 0:
                kernels.scale_[(1,)](x, 4, 2.0, BLOCK=4)
        if child == 0:
            kernels.scale_[(1,)](x, 4, 2.0, BLOCK=4)
            lazytrace.disable()
            os._exit(0)
        os.waitpid(child, 0)
    (path,) = out.glob(f"*.{child}.ndjson")
    assert [(r.count, r.mark) for r in lazytrace.read(path).launches] == [(1, "before the fork")]

"""Bytes of tensors that are kept beside the trace: which, how many, where, and back again."""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
import random
from pathlib import Path

import attrs
import kernels
import pytest
import torch
from case_kernels import captured, ignore

import lazytrace
from lazytrace import OptionError, TraceError
from lazytrace._capture.views import Views
from lazytrace._device.cuda_bytes import ByteReader
from lazytrace._device.runtime import HostRuntime, ReadError, UnreadableBytes
from lazytrace._simulator.runtime import SimulatedRuntime
from lazytrace._values.blobs import BlobError, BlobStore
from lazytrace._values.reading import ViewReader
from lazytrace._values.view_bytes import blocks
from lazytrace.arguments import Blob
from lazytrace.records import Observation, Point, TensorStats


def raw(tensor):
    """A tensor's elements, row-major, as bytes."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    flat.copy_(tensor.detach().cpu().reshape(-1))
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def copy(x, out):
    kernels.copy[(1,)](x, out, out.numel(), BLOCK=32)


def files_under(folder):
    return sorted(path for path in Path(folder).rglob("*") if path.is_file())


def only_launch(path):
    trace = lazytrace.read(path)
    (launch,) = trace.launches
    return trace, launch.args


# The bytes of a view


def random_view(rng):
    """A view of any strides: expanded, overlapping, transposed, with an offset."""
    dtype = rng.choice((torch.uint8, torch.int16, torch.float32, torch.complex128))
    shape = [rng.choice((1, 1, 2, 3, 5)) for _ in range(rng.randrange(0, 5))]
    strides = [rng.choice((0, 1, 1, 2, 3, 5, 10, 15, 30)) for _ in shape]
    if rng.random() < 0.5:
        strides = list(torch.empty(shape).stride())
        order = rng.sample(range(len(shape)), len(shape))
        shape, strides = [shape[i] for i in order], [strides[i] for i in order]
    offset = rng.randrange(4)
    size = offset + 1 + sum((n - 1) * step for n, step in zip(shape, strides))
    data = torch.randint(0, 255, (size * dtype.itemsize,), dtype=torch.uint8)
    return torch.as_strided(data.view(dtype), shape, strides, offset)


@attrs.define
class HostDriver:
    """The driver's copies, over host memory."""

    copies: int = 0
    held: list[object] = attrs.field(factory=list)

    def host_alloc(self, size_bytes):
        self.held.append(ctypes.create_string_buffer(size_bytes))
        return ctypes.addressof(self.held[-1])

    def copy_to_host(self, host, device, size_bytes, stream):
        self.copies += 1
        ctypes.memmove(host, device, size_bytes)

    def copy_rows_to_host(self, host, device, width, rows, pitch, stream):
        assert rows > 1
        assert pitch >= width > 0
        self.copies += 1
        for row in range(rows):
            ctypes.memmove(host + row * width, device + row * pitch, width)

    def stream_synchronize(self, stream):
        assert stream == 9


def simulated_bytes(view, limit):
    return SimulatedRuntime(None).read_bytes(view, limit)


def cuda_bytes(view, limit):
    return ByteReader(HostDriver(), buffer_bytes=64).read(view, limit, 9)


@pytest.mark.parametrize("read", [simulated_bytes, cuda_bytes])
def test_the_first_bytes_of_any_view_are_its_elements_in_order(read):
    """A thousand random views and limits, against torch's own contiguous copy."""
    rng = random.Random(0)
    torch.manual_seed(0)
    for case in range(1000):
        tensor = random_view(rng)
        limit = rng.choice((0, 1, 7, 40, 200, 10_000))
        whole = limit - limit % tensor.element_size()
        view = Views().tensor(tensor)
        assert read(view, limit) == raw(tensor)[:whole], (case, tensor.shape, tensor.stride())


def test_an_expanded_view_is_not_walked_to_its_end():
    """2**40 logical elements cost what is kept of them."""
    tensor = torch.tensor([7], dtype=torch.uint8)
    view = Views().tensor(tensor.expand(1 << 40))
    assert simulated_bytes(view, 5) == b"\x07" * 5
    assert len(list(blocks(view, 5))) == 5


def test_rows_of_a_matrix_are_one_copy():
    """And a transposed matrix one for each of its rows."""
    matrix = torch.arange(64.0).reshape(8, 8)
    for tensor, copies in ((matrix, 1), (matrix[:, :3], 1), (matrix.T, 8)):
        driver = HostDriver()
        reader = ByteReader(driver)
        assert reader.read(Views().tensor(tensor), 1 << 20, 9) == raw(tensor)
        assert driver.copies == copies


def test_a_view_that_is_too_scattered_is_refused():
    """Rather than taking seconds inside the program's synchronisation."""
    tensor = torch.zeros(2).as_strided((20_000, 2), (0, 1))
    with pytest.raises(UnreadableBytes, match="more than 16384 copies"):
        ByteReader(HostDriver()).read(Views().tensor(tensor), 1 << 20, 9)


# From a launch to the reader


def test_an_eager_launch_s_tensors_come_back(device, tmp_path):
    """Every bit of every tensor that was read, by the path of its argument."""
    x = torch.arange(8.0, device=device.torch_device)
    out = torch.zeros(8, device=device.torch_device)
    with lazytrace.trace(tmp_path / "t.ndjson", save_tensors=1 << 20) as tracer:
        copy(x, out)
        device.synchronize()
        (record,) = tracer.records()
    trace, args = only_launch(tracer.path)
    assert trace.blob(args["x"]) == raw(torch.arange(8.0))
    data = args["out"].data
    assert (data.nbytes, data.total_bytes, data.cut) == (32, 32, False)
    assert trace.blob(data) == raw(torch.arange(8.0))
    assert record.args["x"] == args["x"]
    assert args["x"].data_reason is None


def test_a_captured_launch_s_tensors_are_what_the_replay_left(device, tmp_path):
    """With the observation that says so."""
    x = torch.ones(8, device=device.torch_device)
    with lazytrace.trace(tmp_path / "t.ndjson", save_tensors=1 << 20) as tracer:
        graph = captured(lambda: kernels.scale_[(1,)](x, 8, 3.0, BLOCK=32))
        graph.replay()
        graph.replay()
        device.synchronize()
        del graph
    trace, args = only_launch(tracer.path)
    assert trace.blob(args["x"]) == raw(torch.full((8,), 9.0))
    assert (args["x"].observed.point, args["x"].observed.replay) == ("after_replay", 2)


def test_a_strided_view_is_kept_in_its_own_order(device, tmp_path):
    """A transposed one row-major as its shape says."""
    matrix = torch.arange(12.0, device=device.torch_device).reshape(3, 4)
    with lazytrace.trace(tmp_path / "t.ndjson", save_tensors=1 << 20) as tracer:
        ignore[(1,)](matrix.T, matrix[:, 1:3], 1)
        device.synchronize()
    trace, args = only_launch(tracer.path)
    assert trace.blob(args["x"]) == raw(matrix.T)
    assert trace.blob(args["y"]) == raw(matrix[:, 1:3])


def test_what_is_over_the_limit_is_cut_to_whole_elements(simulated, tmp_path):
    """10 bytes leave two floats of eight, and the record says of how many."""
    x, y = torch.arange(8.0), torch.zeros(8)
    with lazytrace.trace(tmp_path / "t.ndjson", save_tensors=10) as tracer:
        ignore[(1,)](x, y, 1)
    trace, args = only_launch(tracer.path)
    data = args["x"].data
    assert (data.nbytes, data.total_bytes, data.cut) == (8, 32, True)
    assert trace.blob(args["x"]) == raw(x)[:8]


def read_tensor(tmp_path, tensor, runtime=None, *, limit=100, most=1000):
    """A reader that has read one tensor, the result, and what is left."""
    runtime = runtime or SimulatedRuntime(None)
    reader = ViewReader(runtime, most, blobs=store(tmp_path, limit=limit))
    view = Views().tensor(tensor)
    results, left = reader.read([view], (), {view.id: "k"})
    return reader, results.get(view.id), left


def test_a_limit_below_one_element_keeps_nothing(tmp_path):
    """The statistics are read, and the reason is stated and counted."""
    reason = "max_read_bytes or save_tensors leaves no room for an element"
    tensor = torch.ones(2, dtype=torch.complex128)
    reader, result, _ = read_tensor(tmp_path, tensor, limit=15)
    assert (result.state, result.data, result.data_reason) == ("materialized", None, reason)
    assert reader.blobs.dropped == {reason: 1}


def test_a_dtype_without_statistics_still_has_its_bytes(tmp_path):
    """Packed elements are skipped by the statistics and kept as they are, with the time."""
    packed = torch.arange(8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    _, result, _ = read_tensor(tmp_path, packed)
    assert (result.state, result.values) == ("skipped", None)
    observed = Observation(Point.ON_REQUEST)
    reading = result.reading(observed)
    assert (reading.state, reading.observed) == ("skipped", observed)
    assert reading.data == Blob.of(bytes(range(8)), 8)


def test_nothing_is_kept_unless_it_is_asked_for(simulated, tmp_path):
    """No folder, and no word of it in the file."""
    x, out = torch.ones(4), torch.zeros(4)
    with lazytrace.trace(tmp_path / "t.ndjson") as tracer:
        copy(x, out)
    trace, args = only_launch(tracer.path)
    assert os.listdir(tmp_path) == ["t.ndjson"]
    assert '"data' not in tracer.path.read_text().replace('"data_ptr"', "")
    with pytest.raises(TraceError, match="keeps no data of this argument: save_tensors was not"):
        trace.blob(args["x"])


# Files


def test_files_are_named_by_their_content_and_shared(simulated, tmp_path):
    """Three equal tensors of two launches are one file, whose name is the hash of its bytes."""
    x, y, z = torch.ones(8), torch.ones(8), torch.full((8,), 2.0)
    with lazytrace.trace(tmp_path / "t.ndjson", save_tensors=64) as tracer:
        ignore[(1,)](x, y, 1)
        ignore[(1,)](x, z, 1)
    folder = tmp_path / "t.ndjson.blobs"
    digests = sorted(hashlib.blake2b(raw(t), digest_size=32).hexdigest() for t in (x, z))
    assert files_under(folder) == [folder / digest[:2] / f"{digest}.bin" for digest in digests]
    first, second = lazytrace.read(tracer.path).launches
    assert first.args["x"].data == first.args["y"].data == second.args["x"].data


def test_values_and_files_are_there_together(simulated, tmp_path):
    """Every hash in the file names a file at each moment that the trace is written out."""
    path, x, out = tmp_path / "t.ndjson", torch.ones(4), torch.zeros(4)
    with lazytrace.trace(path, save_tensors=64) as tracer:
        copy(x, out)
        torch.cuda.synchronize()
        readings = [
            reading
            for line in map(json.loads, path.read_text().splitlines())
            if line["type"] == "values"
            for reading in line["readings"].values()
        ]
        assert len(readings) == 2
        for reading in readings:
            digest = reading["data"]["hash"]
            assert (tmp_path / "t.ndjson.blobs" / digest[:2] / f"{digest}.bin").exists()
        assert tracer.problems() == []


def store(tmp_path, **options):
    return attrs.evolve(BlobStore.beside(tmp_path / "t.ndjson", 100), **options)


def test_one_kernel_s_quota_leaves_the_others_theirs(tmp_path):
    """What is there already costs nothing."""
    blobs = store(tmp_path, kernel_quota=10, quota=15)
    assert blobs.refusal("a", 8) is None
    blobs.keep("a", b"12345678", 8)
    blobs.keep("a", b"12345678", 8)
    assert blobs.refusal("a", 2) is None
    assert blobs.refusal("a", 3) == "save_tensors: 10 bytes for one kernel"
    blobs.keep("b", b"87654321"[:7], 7)
    assert blobs.refusal("c", 1) == "save_tensors: 15 bytes in all"


def test_beyond_a_quota_values_are_read_all_the_same(simulated, tmp_path):
    """The record says why there is no data, and the counters how often."""
    x, y = torch.ones(8), torch.zeros(8)
    with lazytrace.trace(tmp_path / "t.ndjson", save_tensors=64) as tracer:
        tracer._assembly.flusher.reader.blobs.quota = 40
        ignore[(1,)](x, y, 1)
        torch.cuda.synchronize()
        (problem,) = tracer.problems()
    trace, args = only_launch(tracer.path)
    kept = [path for path in ("x", "y") if args[path].data is not None]
    (lost,) = {"x", "y"} - set(kept)
    assert len(kept) == 1
    assert args[lost].state == "materialized"
    assert args[lost].data_reason == "save_tensors: 40 bytes in all"
    assert problem.message == "1 dropped: save_tensors: 40 bytes in all"
    assert trace.coverage.dropped == {"save_tensors: 40 bytes in all": 1}
    with pytest.raises(TraceError, match="save_tensors: 40 bytes in all"):
        trace.blob(args[lost])


def test_a_link_in_the_folder_s_place_is_not_followed(tmp_path):
    """Nothing appears where it points."""
    target = tmp_path / "elsewhere"
    target.mkdir()
    (tmp_path / "t.ndjson.blobs").symlink_to(target)
    with pytest.raises(BlobError):
        store(tmp_path).keep("k", b"data", 4)
    assert os.listdir(target) == []


def test_a_link_in_a_subfolder_s_place_is_not_followed(tmp_path):
    """Nor one level further down."""
    target = tmp_path / "elsewhere"
    target.mkdir()
    folder = tmp_path / "t.ndjson.blobs"
    folder.mkdir()
    (folder / Blob.of(b"data", 4).hash[:2]).symlink_to(target)
    with pytest.raises(BlobError):
        store(tmp_path).keep("k", b"data", 4)
    assert os.listdir(target) == []


def place_of(tmp_path, data):
    directory, name = Blob.of(data, len(data)).file
    folder = tmp_path / "t.ndjson.blobs" / directory
    folder.mkdir(parents=True)
    return folder / name


def test_a_foreign_file_is_neither_changed_nor_taken(tmp_path):
    """A file of this name with other bytes stays, and the data are not kept."""
    place = place_of(tmp_path, b"data")
    place.write_bytes(b"else")
    blobs = store(tmp_path)
    with pytest.raises(BlobError, match="File exists"):
        blobs.keep("k", b"data", 4)
    assert place.read_bytes() == b"else"
    assert blobs.refusal("k", 1) == "save_tensors: File exists"


def test_a_link_in_a_file_s_place_is_not_followed(tmp_path):
    """Not even to a file with the very bytes."""
    (tmp_path / "real").write_bytes(b"data")
    place = place_of(tmp_path, b"data")
    place.symlink_to(tmp_path / "real")
    with pytest.raises(BlobError):
        store(tmp_path).keep("k", b"data", 4)


def test_a_file_that_is_there_with_the_same_bytes_is_used(tmp_path):
    """Left by an earlier trace of this name."""
    place = place_of(tmp_path, b"data")
    place.write_bytes(b"data")
    assert store(tmp_path).keep("k", b"data", 9) == Blob.of(b"data", 9)


def test_a_folder_that_cannot_be_made_costs_data_only(simulated, tmp_path):
    """The values and the program go on; what is missing is counted."""
    (tmp_path / "t.ndjson.blobs").write_text("a file")
    x, out = torch.ones(4), torch.zeros(4)
    with lazytrace.trace(tmp_path / "t.ndjson", save_tensors=64) as tracer:
        copy(x, out)
        torch.cuda.synchronize()
        (record,) = tracer.records()
        (problem,) = tracer.problems()
    assert record.args["x"].values.max == 1.0
    assert record.args["x"].data is None
    assert record.args["x"].data_reason == "save_tensors: Not a directory"
    assert problem.message == "2 dropped: save_tensors: Not a directory"


# Back again


@pytest.fixture
def kept(simulated, tmp_path):
    """A trace with one tensor's data, the argument, and its file."""
    x = torch.ones(4)
    with lazytrace.trace(tmp_path / "t.ndjson", save_tensors=64) as tracer:
        kernels.scale_[(1,)](x, 4, 2.0, BLOCK=32)
    trace, args = only_launch(tracer.path)
    (file,) = files_under(tmp_path / "t.ndjson.blobs")
    return trace, args["x"], file


@pytest.mark.parametrize("damage", [b"", b"\0" * 16, b"\0" * 17, b"\0" * 3])
def test_other_bytes_than_were_kept_are_refused(kept, damage):
    """Whatever their length: the hash decides."""
    trace, arg, file = kept
    file.write_bytes(damage)
    with pytest.raises(TraceError, match="has other bytes than the trace has kept"):
        trace.blob(arg)


def test_a_missing_file_is_named(kept):
    """TraceError, with its path."""
    trace, arg, file = kept
    file.unlink()
    with pytest.raises(TraceError, match="cannot be read") as caught:
        trace.blob(arg)
    assert caught.value.path == str(file)


@pytest.mark.parametrize("name", ["", "../../t.ndjson", "a" * 63, "A" * 64, "/etc/passwd"])
def test_a_hash_that_is_none_names_no_file(kept, name):
    """A trace from elsewhere cannot point out of its folder."""
    trace, _, _ = kept
    with pytest.raises(TraceError, match="hash that is none"):
        trace.blob(Blob(name, 4, 4))


def test_the_folder_moves_with_the_file(kept, tmp_path):
    """Both under a new name, side by side."""
    trace, arg, _ = kept
    moved = tmp_path / "moved"
    moved.mkdir()
    os.rename(trace.path, moved / "u.ndjson")
    os.rename(trace.path + ".blobs", moved / "u.ndjson.blobs")
    assert lazytrace.read(moved / "u.ndjson").blob(arg) == raw(torch.full((4,), 2.0))


# Bounds and faults


def test_save_tensors_needs_an_output():
    """A trace in memory has no folder to keep them in."""
    with pytest.raises(OptionError, match="save_tensors=5: expected 0 where the trace is in mem"):
        lazytrace.enable(save_tensors=5)
    with pytest.raises(OptionError, match="save_tensors=-1"):
        lazytrace.enable("t.ndjson", save_tensors=-1)


@attrs.define
class Fake(HostRuntime):
    """Statistics for nothing, and bytes, or an error, for any view."""

    error: Exception | None = None
    asked: list[int] = attrs.field(factory=list)

    def unreadable(self, view):
        return None

    def cost(self, view):
        return view.span

    def read(self, views):
        return [TensorStats() for _ in views]

    def read_bytes(self, view, limit):
        self.asked.append(limit)
        if self.error is not None:
            raise self.error
        return bytes(limit)


@pytest.mark.parametrize(
    ("max_read_bytes", "kept_bytes"), [(140, 70), (100, 30), (71, 1), (70, None)]
)
def test_data_count_towards_max_read_bytes_after_the_statistics(
    tmp_path, max_read_bytes, kept_bytes
):
    """70 bytes are read for their statistics; what is left of the budget is for the data."""
    tensor = torch.zeros(70, dtype=torch.uint8)
    _, result, left = read_tensor(tmp_path, tensor, Fake(), most=max_read_bytes)
    assert result.state == "materialized"
    assert (result.data and result.data.nbytes) == kept_bytes
    assert left is None


def test_a_flush_keeps_to_its_budget_with_data(tmp_path):
    """Two tensors of 70 bytes cost 280 with their data: one waits for the next flush."""
    reader = ViewReader(Fake(), 279, blobs=store(tmp_path))
    tensors = [torch.zeros(70, dtype=torch.uint8) for _ in range(2)]
    views = [Views().tensor(tensor) for tensor in tensors]
    views[1] = attrs.evolve(views[1], id=views[0].id + 1)
    results, left = reader.read(views)
    assert len(results) == 1
    assert left == "max_read_bytes"


def test_bytes_that_cannot_be_had_cost_the_data_alone(tmp_path):
    """The statistics stay, the reason is the error's."""
    runtime = Fake(error=UnreadableBytes("save_tensors: too scattered"))
    reader, result, _ = read_tensor(tmp_path, torch.zeros(10), runtime)
    assert (result.state, result.data) == ("materialized", None)
    assert result.data_reason == "save_tensors: too scattered"
    assert reader.broken is None


@pytest.mark.parametrize("sticky", [True, False])
def test_a_device_that_is_lost_while_bytes_are_read_is_not_asked_again(tmp_path, sticky):
    """A sticky error is kept, one that may pass is not."""
    runtime = Fake(error=ReadError("cuMemcpyDtoHAsync_v2: LOST", sticky=sticky))
    reader, result, _ = read_tensor(tmp_path, torch.zeros(10), runtime)
    assert (result.state, result.data_reason) == ("materialized", "cuMemcpyDtoHAsync_v2: LOST")
    assert reader.broken == ("cuMemcpyDtoHAsync_v2: LOST" if sticky else None)


def test_the_program_s_results_do_not_change(device, tmp_path):
    """The same tensors with data kept as without."""

    def run():
        x = torch.arange(8.0, device=device.torch_device)
        graph = captured(lambda: kernels.scale_[(1,)](x, 8, 3.0, BLOCK=32))
        graph.replay()
        device.synchronize()
        return raw(x)

    expected = run()
    with lazytrace.trace(tmp_path / "t.ndjson", save_tensors=1 << 20) as tracer:
        assert run() == expected
        assert tracer.problems() == []
    assert math.prod(torch.frombuffer(bytearray(expected), dtype=torch.float32)[1:].tolist()) > 0

"""Statistics of device memory: one fixed workspace, a few launches, one wait a batch.

Nothing here goes through torch: no allocator, no mode, no current stream of the program's is
used or changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import attrs

from lazytrace._device.cuda_driver import CudaError
from lazytrace._statistics.decode import Total, add_records, empty_total, stats_of
from lazytrace._statistics.layout import layout_of
from lazytrace._statistics.plan import PROGRAM_WORDS, WORD_BYTES, Batch, Work, batches_of
from lazytrace._statistics.region import (
    ELEMENT_TYPES,
    MisalignedView,
    Region,
    UnsupportedDtype,
    element_type,
)
from lazytrace.errors import InternalError
from lazytrace.records import TensorStats

_TABLE_WORDS = 1 << 17
_RECORD_WORDS = 1 << 18
_MAX_PROGRAMS = 1056  # of one job: 8 for each of the 132 multiprocessors of a large device


class Driver(Protocol):
    """What the engine needs of the CUDA driver; sizes are in bytes."""

    def device_alloc(self, size_bytes: int) -> int: ...
    def host_alloc(self, size_bytes: int) -> int: ...
    def copy_to_device(self, device: int, host: int, size_bytes: int, stream: int) -> None: ...
    def copy_to_host(self, host: int, device: int, size_bytes: int, stream: int) -> None: ...
    def stream_synchronize(self, stream: int) -> None: ...


class Kernels(Protocol):
    """The statistics kernels of one device."""

    def prepare(self, dtype: str) -> Any: ...
    def launch(
        self, dtype: str, is_bulk: bool, programs: int, stream: int, addresses: tuple[int, int, int]
    ) -> None: ...


def _compiled_kernels() -> Kernels:
    # Imported late: the plan and the records' decoding do without Triton.
    from lazytrace._statistics.compiled import CompiledKernels

    return CompiledKernels()


@attrs.frozen
class _Workspace:
    """Addresses of the table and the records on the device, and of their pinned copies."""

    table: int
    records: int
    host_table: int
    host_records: int

    @classmethod
    def allocate(cls, driver: Driver) -> _Workspace:
        table_bytes, record_bytes = _TABLE_WORDS * WORD_BYTES, _RECORD_WORDS * WORD_BYTES
        device = driver.device_alloc(table_bytes + record_bytes)
        host = driver.host_alloc(table_bytes + record_bytes)
        return cls(device, device + table_bytes, host, host + table_bytes)


@attrs.define
class DeviceEngine:
    """Reads views of one device's memory. ``device`` is its index.

    The device must be the current one in ``prepare`` and ``read``. The workspace, 3 MiB on the
    device and as much pinned, is allocated by the first of them and kept.
    """

    driver: Driver
    device: int
    _kernels: Kernels = attrs.field(factory=_compiled_kernels)
    _workspace: _Workspace | None = None
    _max_programs: int = _MAX_PROGRAMS

    def prepare(self, dtypes: Iterable[str] = ()) -> None:
        """Allocates the workspace and compiles the dtypes' kernels, so that read() need not."""
        if self._workspace is None:
            self._workspace = _Workspace.allocate(self.driver)
        for dtype in dtypes:
            if dtype in ELEMENT_TYPES:
                self._kernels.prepare(dtype)

    def read(self, regions: Sequence[Region], stream: int) -> list[TensorStats | Exception]:
        """Each region's statistics, or what prevented them.

        Waits for ``stream`` once for each workspace-full of records. A CudaError, or a launch
        that fails, is the answer for every region not finished by then.
        """
        self.prepare()
        results: list[TensorStats | Exception] = [TensorStats()] * len(regions)
        work: list[Work] = []
        totals: dict[int, Total] = {}
        for owner, region in enumerate(regions):
            try:
                kind = element_type(region)
            except (UnsupportedDtype, MisalignedView) as error:
                results[owner] = error
                continue
            layout = layout_of(region)
            if layout.numel:
                work.append(Work(owner, region, kind, layout))
                totals[owner] = empty_total(region.dtype, kind)
        finished = self._run(work, totals, stream)
        for item in work:
            results[item.owner] = finished or stats_of(totals[item.owner], item)
        return results

    def _run(self, work: list[Work], totals: dict[int, Total], stream: int) -> Exception | None:
        try:
            for batch in batches_of(work, _TABLE_WORDS, _RECORD_WORDS, self._max_programs):
                records = self._records_of(batch, stream)
                for owner, word, count in batch.parts:
                    add_records(totals[owner], records, word, count)
        except (CudaError, RuntimeError) as error:
            return error
        return None

    def _records_of(self, batch: Batch, stream: int) -> bytes:
        workspace = self._workspace
        if workspace is None:
            raise InternalError("statistics were asked for without a workspace")
        table = batch.jobs[:]
        launches: list[tuple[str, bool, int, int]] = []
        for dtype, section in batch.sections.items():
            stages = self._kernels.prepare(dtype)
            bulk, exact = len(table), len(table) + len(section.bulk)
            table += section.bulk
            table += section.exact
            launches.append((dtype, True, bulk, exact))
            launches.append((dtype, False, bulk if stages.redoes else exact, len(table)))
        size_bytes = len(table) * WORD_BYTES
        ctypes.memmove(workspace.host_table, table.buffer_info()[0], size_bytes)
        self.driver.copy_to_device(workspace.table, workspace.host_table, size_bytes, stream)
        for dtype, is_bulk, start, stop in launches:
            if start < stop:
                first = workspace.table + start * WORD_BYTES
                programs = (stop - start) // PROGRAM_WORDS
                addresses = (workspace.table, first, workspace.records)
                self._kernels.launch(dtype, is_bulk, programs, stream, addresses)
        size_bytes = batch.used_records * WORD_BYTES
        self.driver.copy_to_host(workspace.host_records, workspace.records, size_bytes, stream)
        self.driver.stream_synchronize(stream)
        return ctypes.string_at(workspace.host_records, size_bytes)

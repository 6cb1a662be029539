"""The few calls of the CUDA driver that lazytrace makes itself, through ctypes.

The flush reads device memory without torch: no allocator, no dispatch mode, no current stream of
torch's can then be disturbed by it, or disturb it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import attrs

from lazytrace.errors import LazytraceError

_BLOCKING = 0  # CU_STREAM_DEFAULT: ordered with the legacy default stream
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: not so
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NOT_READY = 600  # CUDA_ERROR_NOT_READY
_CAPTURE_ACTIVE = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE
_MEMORY_TYPE = 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE
_IS_MANAGED = 8  # CU_POINTER_ATTRIBUTE_IS_MANAGED
_TYPE_HOST = 1  # CU_MEMORYTYPE_HOST
_TYPE_DEVICE = 2  # CU_MEMORYTYPE_DEVICE


class CudaError(LazytraceError):
    """A driver call failed. ``code`` is the CUresult, ``name`` its name."""

    def __init__(self, call: str, code: int, name: str) -> None:
        self.code = code
        self.name = name
        super().__init__(f"{call}: {name}")


class MemoryKind(str, Enum):
    """Where a pointer's memory is."""

    DEVICE = "device"
    HOST = "host"
    MANAGED = "managed"
    UNKNOWN = "unknown"


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (
        ("src_x_bytes", ctypes.c_size_t),
        ("src_y", ctypes.c_size_t),
        ("src_memory_type", ctypes.c_uint),
        ("src_host", ctypes.c_void_p),
        ("src_device", ctypes.c_uint64),
        ("src_array", ctypes.c_void_p),
        ("src_pitch", ctypes.c_size_t),
        ("dst_x_bytes", ctypes.c_size_t),
        ("dst_y", ctypes.c_size_t),
        ("dst_memory_type", ctypes.c_uint),
        ("dst_host", ctypes.c_void_p),
        ("dst_device", ctypes.c_uint64),
        ("dst_array", ctypes.c_void_p),
        ("dst_pitch", ctypes.c_size_t),
        ("width_bytes", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


@attrs.define
class CudaDriver:
    """Calls of libcuda. Every method but the queries raises CudaError when the call fails."""

    _lib: Any
    _contexts: dict[int, int] = attrs.field(factory=dict)

    @classmethod
    def load(cls) -> CudaDriver | None:
        """The driver library, or None where there is none. Creates no context."""
        try:
            lib = ctypes.CDLL("libcuda.so.1")
        except OSError:
            return None
        lib.cuStreamIsCapturing.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        return cls(lib)

    def _check(self, call: str, *args: Any) -> None:
        code = getattr(self._lib, call)(*args)
        if code:
            raise CudaError(call, code, self._name(code))

    def _name(self, code: int) -> str:
        name = ctypes.c_char_p()
        if self._lib.cuGetErrorName(code, ctypes.byref(name)) or name.value is None:
            return f"error {code}"
        return name.value.decode()

    @contextmanager
    def context(self, device: int) -> Iterator[None]:
        """Makes the device's primary context current for this thread, as torch does."""
        handle = self._contexts.get(device)
        if handle is None:
            context = ctypes.c_void_p()
            self._check("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            handle = self._contexts[device] = context.value or 0
        self._check("cuCtxPushCurrent_v2", ctypes.c_void_p(handle))
        try:
            yield
        finally:
            popped = ctypes.c_void_p()
            self._check("cuCtxPopCurrent_v2", ctypes.byref(popped))

    # Captures

    @contextmanager
    def relaxed_capture_mode(self) -> Iterator[None]:
        """Lets this thread make calls that would break another thread's capture otherwise."""
        mode = ctypes.c_int(_RELAXED)
        self._check("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            yield
        finally:
            self._check("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))

    def capture_id(self, stream: int) -> int | None:
        """The id of the capture that the stream is part of, or None."""
        status = ctypes.c_int()
        capture = ctypes.c_uint64()
        code = self._lib.cuStreamGetCaptureInfo_v2(
            ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(capture), None, None, None
        )
        if code or status.value != _CAPTURE_ACTIVE:
            return None
        return capture.value

    def is_capturing(self, stream: int) -> bool:
        """Whether the stream is part of a capture, an invalidated one included."""
        if not stream:
            return False  # the legacy default stream cannot be captured
        status = ctypes.c_int()
        code = self._lib.cuStreamIsCapturing(stream, ctypes.byref(status))
        return bool(code == 0 and status.value)

    # Streams and events

    def stream_create(self, *, blocking: bool = False) -> int:
        """A stream of our own; a blocking one and the legacy default stream wait for each other."""
        stream = ctypes.c_void_p()
        flags = _BLOCKING if blocking else _NON_BLOCKING
        self._check("cuStreamCreate", ctypes.byref(stream), flags)
        return stream.value or 0

    def stream_synchronize(self, stream: int) -> None:
        """Waits for one stream of ours."""
        self._check("cuStreamSynchronize", ctypes.c_void_p(stream))

    def event_behind(self, stream: int) -> int | None:
        """An event behind all work of the stream; None if the stream is capturing.

        Only for streams on which no other thread can be capturing: a record beside the thread that
        captures corrupts CUDA's own books of the capture.
        """
        if self.is_capturing(stream):
            return None
        event = ctypes.c_void_p()
        self._check("cuEventCreate", ctypes.byref(event), _NO_TIMING)
        handle = event.value or 0
        try:
            self._check("cuEventRecord", event, ctypes.c_void_p(stream))
        except CudaError:
            self.event_destroy(handle)
            raise
        return handle

    def event_passed(self, event: int) -> bool:
        """Whether all work before the event is done."""
        code: int = self._lib.cuEventQuery(ctypes.c_void_p(event))
        if code not in (0, _NOT_READY):
            raise CudaError("cuEventQuery", code, self._name(code))
        return code == 0

    def event_destroy(self, event: int) -> None:
        """Frees an event."""
        self._lib.cuEventDestroy_v2(ctypes.c_void_p(event))

    # Memory

    def device_alloc(self, size_bytes: int) -> int:
        """Device memory outside every allocator of the program; its address."""
        address = ctypes.c_uint64()
        self._check("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        return address.value

    def host_alloc(self, size_bytes: int) -> int:
        """Pinned host memory; its address."""
        address = ctypes.c_void_p()
        self._check("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size_bytes), _PORTABLE)
        return address.value or 0

    def device_free(self, address: int) -> None:
        """Frees what device_alloc gave."""
        self._check("cuMemFree_v2", ctypes.c_uint64(address))

    def host_free(self, address: int) -> None:
        """Frees what host_alloc gave."""
        self._check("cuMemFreeHost", ctypes.c_void_p(address))

    def copy_to_device(self, device: int, host: int, size_bytes: int, stream: int) -> None:
        """Enqueues a copy from pinned host memory."""
        self._check(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(device),
            ctypes.c_void_p(host),
            ctypes.c_size_t(size_bytes),
            ctypes.c_void_p(stream),
        )

    def copy_to_host(self, host: int, device: int, size_bytes: int, stream: int) -> None:
        """Enqueues a copy into pinned host memory."""
        self._check(
            "cuMemcpyDtoHAsync_v2",
            ctypes.c_void_p(host),
            ctypes.c_uint64(device),
            ctypes.c_size_t(size_bytes),
            ctypes.c_void_p(stream),
        )

    def copy_rows_to_host(
        self, host: int, device: int, width: int, rows: int, pitch: int, stream: int
    ) -> None:
        """Enqueues a copy of rows, ``pitch`` bytes apart, into adjacent pinned host memory."""
        copy = _Copy2D(
            src_memory_type=_TYPE_DEVICE,
            src_device=device,
            src_pitch=pitch,
            dst_memory_type=_TYPE_HOST,
            dst_host=host,
            dst_pitch=width,
            width_bytes=width,
            height=rows,
        )
        self._check("cuMemcpy2DAsync_v2", ctypes.byref(copy), ctypes.c_void_p(stream))

    def memory_kind(self, address: int) -> MemoryKind:
        """Where the memory at an address is; UNKNOWN for an address that CUDA does not know."""
        managed = ctypes.c_uint(0)
        kind = ctypes.c_uint(0)
        query = self._lib.cuPointerGetAttribute
        if query(ctypes.byref(kind), _MEMORY_TYPE, ctypes.c_uint64(address)):
            return MemoryKind.UNKNOWN
        query(ctypes.byref(managed), _IS_MANAGED, ctypes.c_uint64(address))
        if managed.value & 0xFF:
            return MemoryKind.MANAGED
        return MemoryKind.DEVICE if kind.value == _TYPE_DEVICE else MemoryKind.HOST

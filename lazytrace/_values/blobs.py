"""Keeps bytes of tensors in a folder beside the trace, each distinct content once."""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import attrs

from lazytrace.lines import BLOBS_SUFFIX
from lazytrace.records import Blob

KERNEL_QUOTA_BYTES = 64 << 20
QUOTA_BYTES = 1 << 30

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class BlobError(Exception):
    """Bytes that could not be kept; the message is the reason."""


@attrs.define(eq=False)
class BlobStore:
    """Writes blobs to ``TRACE.blobs/ab/HASH.bin``; follows no link and changes no file.

    ``limit`` is how many bytes of one tensor are kept. What one kernel's arguments add is
    bounded by ``kernel_quota``, what all add by ``quota``, both in bytes of new files. ``dropped``
    counts the tensors of which nothing was kept, by reason. After a failed write no further one
    is tried.
    """

    folder: Path
    limit: int
    kernel_quota: int = KERNEL_QUOTA_BYTES
    quota: int = QUOTA_BYTES
    dropped: Counter[str] = attrs.field(factory=Counter)
    fault: str | None = None
    _known: set[str] = attrs.field(factory=set)
    _by_kernel: Counter[str] = attrs.field(factory=Counter)
    _total: int = 0

    @classmethod
    def beside(cls, trace: Path, limit: int) -> BlobStore:
        """The store of the trace in this file; the folder is made with the first blob."""
        return cls(trace.with_name(trace.name + BLOBS_SUFFIX), limit)

    def refusal(self, kernel: str, size_bytes: int) -> str | None:
        """Why so many bytes of a kernel's argument would not be kept; None if they would."""
        if self.fault is not None:
            return self.fault
        if self._total + size_bytes > self.quota:
            return f"save_tensors: {self.quota} bytes in all"
        if self._by_kernel[kernel] + size_bytes > self.kernel_quota:
            return f"save_tensors: {self.kernel_quota} bytes for one kernel"
        return None

    def refused(self, reason: str) -> None:
        """Counts a tensor of which nothing was kept."""
        self.dropped[reason] += 1

    def keep(self, kernel: str, data: bytes, total_bytes: int) -> Blob:
        """Brings bytes to where they last; BlobError if they cannot be kept."""
        blob = Blob.of(data, total_bytes)
        if blob.hash in self._known:
            return blob
        try:
            self._write(blob, data)
        except OSError as error:
            self.fault = f"save_tensors: {error.strerror or error}"
            raise BlobError(self.fault) from error
        self._known.add(blob.hash)
        self._by_kernel[kernel] += len(data)
        self._total += len(data)
        return blob

    def _write(self, blob: Blob, data: bytes) -> None:
        place = blob.file
        if place is None:
            raise OSError(errno.EINVAL, "a hash that is none")
        directory, name = place
        with ExitStack() as stack:
            root = _opened(self.folder, None, stack)
            parent = _opened(directory, root, stack)
            try:
                file = os.open(name, _CREATE, 0o666, dir_fd=parent)
            except FileExistsError:
                if not _has(name, parent, blob):
                    raise
                return
            try:
                with open(file, "wb") as stream:
                    stream.write(data)
            except OSError:
                os.unlink(name, dir_fd=parent)
                raise


def _opened(directory: Path | str, parent: int | None, stack: ExitStack) -> int:
    """A directory that is made if it is missing, and is no link."""
    # What exists is ours, or of a trace that was deleted: its files are compared, never replaced.
    with suppress(FileExistsError):
        os.mkdir(directory, dir_fd=parent)
    handle = os.open(directory, _DIRECTORY, dir_fd=parent)
    stack.callback(os.close, handle)
    return handle


def _has(name: str, parent: int, blob: Blob) -> bool:
    """Whether a file that is there already is a regular one with these bytes."""
    handle = os.open(name, _READ, dir_fd=parent)
    with open(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return False
        return blob.is_of(stream.read(blob.nbytes + 1))

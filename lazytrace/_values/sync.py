"""Watches the program's synchronisations: each proves work done, and is a flush point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from lazytrace._capture.containment import Containment
from lazytrace._capture.patches import Patches
from lazytrace._device.runtime import Runtime
from lazytrace._values.completion import Completion, Progress


@attrs.define
class SyncWatch:
    """Wraps torch's synchronising functions.

    ``synced`` is called after one returned, ``failed`` when one raised (the device may be lost:
    descriptions are written, nothing is read).
    """

    runtime: Runtime
    completion: Completion
    containment: Containment
    progress: Callable[[], Progress]
    synced: Callable[[], None]
    failed: Callable[[], None]

    def install(self, patches: Patches) -> None:
        """Wraps what is in force now."""
        import torch

        patches.wrap(torch.cuda, "synchronize", self._wrapper(patches, self._device_done))
        patches.wrap(torch.cuda.Stream, "synchronize", self._wrapper(patches, self._stream_done))
        accelerator = getattr(torch, "accelerator", None)
        if accelerator is not None:
            patches.wrap(accelerator, "synchronize", self._wrapper(patches, self._device_done))

    def _wrapper(
        self, patches: Patches, done: Callable[[Progress, tuple[Any, ...], dict[str, Any]], None]
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        import torch

        is_compiling = torch.compiler.is_compiling
        contain = self.containment.run

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def synchronize(*args: Any, **kwargs: Any) -> Any:
                if is_compiling():
                    return original(*args, **kwargs)
                if not patches.active:
                    return original(*args, **kwargs)
                before = self.progress()
                try:
                    result = original(*args, **kwargs)
                except BaseException:
                    contain("flush point", self.failed)
                    raise
                contain("flush point", done, before, args, kwargs)
                return result

            return synchronize

        return make

    def _device_done(self, before: Progress, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        device = args[0] if args else kwargs.get("device")
        self.completion.device_synchronized(self._index(device), before)
        self.synced()

    def _stream_done(self, before: Progress, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stream = args[0]
        index = getattr(getattr(stream, "device", None), "index", None) or 0
        self.completion.stream_synchronized((index, stream.cuda_stream), before)
        self.synced()

    def _index(self, device: Any) -> int:
        if isinstance(device, str):
            device = device.partition(":")[2]
            return int(device) if device else self.runtime.current_device()
        if isinstance(device, int):
            return device
        index = getattr(device, "index", None)
        return self.runtime.current_device() if index is None else int(index)

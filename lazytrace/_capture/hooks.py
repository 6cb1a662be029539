"""Where Triton calls us: one wrapper of CompiledKernel.launch_metadata, one of Autotuner._bench."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lazytrace._capture.containment import Containment
from lazytrace._capture.patches import Patches
from lazytrace._capture.recorder import PhaseContext, Recorder
from lazytrace._probes.placing import Prober
from lazytrace.records import Outcome, Phase


def install(
    patches: Patches,
    recorder: Recorder,
    phase: PhaseContext,
    containment: Containment,
    prober: Prober | None = None,
) -> None:
    """Routes every Python-driven launch to the recorder, and its end to the prober."""
    from triton import knobs
    from triton.compiler.compiler import CompiledKernel
    from triton.runtime.autotuner import Autotuner

    if prober is not None:
        prober.install(patches)
    own_hook = None if prober is None else prober.exit_hook

    def wrap_launch(original: Callable[..., Any]) -> Callable[..., Any]:
        runtime, repeats = knobs.runtime, recorder.kernels.repeats

        def launch_metadata(self: Any, grid: Any, stream: Any, *args: Any) -> Any:
            repeat = repeats.get(id(self))
            if repeat is None or not patches.active:
                return in_full(self, grid, stream, args)
            try:
                recorded = repeat(grid, stream, args)
            except Exception as error:  # noqa: BLE001 - contained here: a call costs 3 % of a launch
                containment.note("launch hook", error)
                recorded = True
            if not recorded:
                return in_full(self, grid, stream, args)
            if _nobody_listens(runtime.launch_enter_hook, runtime.launch_exit_hook, None):
                return None
            return original(self, grid, stream, *args)

        def in_full(self: Any, grid: Any, stream: Any, args: tuple[Any, ...]) -> Any:
            if not patches.active:
                return original(self, grid, stream, *args)
            if prober is not None:
                prober.enter()
            loads = self.module is None
            loaded = None
            if loads:
                loaded = _load(original, self, grid, stream, args, recorder, containment)
            containment.run("launch hook", recorder.launched, self, grid, stream, args)
            if loads:
                return loaded
            if _nobody_listens(runtime.launch_enter_hook, runtime.launch_exit_hook, own_hook):
                return None
            return original(self, grid, stream, *args)

        return launch_metadata

    def wrap_bench(original: Callable[..., Any]) -> Callable[..., Any]:
        def bench(*args: Any, **kwargs: Any) -> Any:
            if not patches.active:
                return original(*args, **kwargs)
            outer = phase.phase
            phase.phase = Phase.TRIAL
            recorder.queue.renew_token()
            try:
                return original(*args, **kwargs)
            finally:
                phase.phase = outer
                recorder.queue.renew_token()

        return bench

    patches.wrap(CompiledKernel, "launch_metadata", wrap_launch)
    patches.wrap(Autotuner, "_bench", wrap_bench)


def _load(
    original: Callable[..., Any],
    kernel: Any,
    grid: Any,
    stream: Any,
    args: tuple[Any, ...],
    recorder: Recorder,
    containment: Containment,
) -> Any:
    """Loads a kernel as its first launch is about to, so that a failure to load is recorded."""
    try:
        metadata = original(kernel, grid, stream, *args)
        if kernel.module is None:  # Triton 3.4 loads in `run`, after this call
            kernel._init_handles()
    except BaseException:
        containment.run(
            "launch hook", recorder.launched, kernel, grid, stream, args, Outcome.FAILED
        )
        raise
    return metadata


def _nobody_listens(enter: Any, leave: Any, own: Any) -> bool:
    """Whether both slots are empty but for our own exit hook.

    A slot holds a chain, or, on Triton 3.4 and where another tool assigned it, a callable or None.
    """
    try:
        if not enter.calls and not leave.calls:
            return True
    except AttributeError:
        pass
    return _is_empty(enter, None) and _is_empty(leave, own)


def _is_empty(hook: Any, own: Any) -> bool:
    if hook is None:
        return True
    calls = getattr(hook, "calls", hook)
    if calls is hook:
        return hook is own
    return not calls or (len(calls) == 1 and calls[0] is own)

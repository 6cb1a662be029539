"""Where Triton calls us: one wrapper of CompiledKernel.launch_metadata, one of Autotuner._bench."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lazytrace._containment import Containment
from lazytrace._patches import Patches
from lazytrace._probes_placing import Prober
from lazytrace._recorder import PhaseContext, Recorder
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
        runtime = knobs.runtime

        def launch_metadata(self: Any, grid: Any, stream: Any, *args: Any) -> Any:
            if not patches.active:
                return original(self, grid, stream, *args)
            if prober is not None:
                prober.enter()
            if self.module is None:
                loaded = _load(original, self, grid, stream, args, recorder, containment)
                containment.run("launch hook", recorder.launched, self, grid, stream, args)
                return loaded
            containment.run("launch hook", recorder.launched, self, grid, stream, args)
            if _nobody_listens(runtime.launch_enter_hook) and _nobody_listens(
                runtime.launch_exit_hook, own_hook
            ):
                return None
            return original(self, grid, stream, *args)

        return launch_metadata

    def wrap_bench(original: Callable[..., Any]) -> Callable[..., Any]:
        def bench(*args: Any, **kwargs: Any) -> Any:
            if not patches.active:
                return original(*args, **kwargs)
            outer = phase.phase
            phase.phase = Phase.TRIAL
            try:
                return original(*args, **kwargs)
            finally:
                phase.phase = outer

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


def _nobody_listens(hook: Any, own: Any = None) -> bool:
    """Whether a slot is empty but for our own hook: another callable is another tool's."""
    if hook is None or hook is own:
        return True
    calls = getattr(hook, "calls", hook)
    return calls is not hook and (not calls or (len(calls) == 1 and calls[0] is own))

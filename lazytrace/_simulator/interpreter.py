"""Runs a Triton kernel's Python source on CPU memory, through Triton's own interpreter."""

from __future__ import annotations

import inspect
import itertools
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import numpy as np
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter
from triton.runtime import jit

from lazytrace._simulator import low_precision
from lazytrace._simulator.low_precision import Change
from lazytrace._simulator.patches import MISSING, AttributePatches

_SUFFIX = "<simulated>"  # keeps our copies apart in Triton's registry of jit functions


@attrs.frozen
class Kernel:
    """What it takes to run a compiled kernel's source.

    ``constexprs`` says which of the parameters, both in signature order, are compile-time
    constants; ``timed`` whether the kernel is the user's and so advances the virtual clock.
    """

    name: str
    fn: Callable[..., Any]
    parameters: tuple[inspect.Parameter, ...]
    constexprs: tuple[bool, ...]
    timed: bool

    def bind(self, args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """One value per parameter, as the function itself takes them."""
        positional: list[Any] = []
        by_name: dict[str, Any] = {}
        for parameter, constexpr, given in zip(self.parameters, self.constexprs, args, strict=True):
            value = given if constexpr else _converted(given)
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                positional.extend(value)
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                by_name[parameter.name] = value
            else:
                positional.append(value)
        return positional, by_name


def _converted(given: Any) -> Any:
    """An argument as the interpreter has it."""
    if isinstance(given, bool):  # Triton 3.6 makes 32 bits of it, and then refuses them as one
        handle = triton_interpreter.TensorHandle(np.array([given], dtype=np.bool_), tl.int1)
        return tl.tensor(handle, tl.int1)
    return triton_interpreter._implicit_cvt(given)


@attrs.define
class Interpreter:
    """Triton's interpreter, with its process-wide patches applied around every run only.

    ``lock`` guards ``triton.language`` while it is patched: compiling needs it too.
    """

    lock: threading.RLock = attrs.field(factory=threading.RLock)
    _functions: weakref.WeakKeyDictionary[Callable[..., Any], Callable[..., Any]] = attrs.field(
        factory=weakref.WeakKeyDictionary
    )
    _changes: list[Change] | None = None
    _running: bool = False

    def run(self, kernel: Kernel, grid: tuple[int, int, int], args: Sequence[Any]) -> None:
        """Run every program of the grid, in order, on the memory that the arguments point to."""
        builder = triton_interpreter.interpreter_builder
        with self._patched(), np.errstate(all="ignore"), _grid_kept(builder):
            function = self._interpreted(kernel.fn)
            positional, by_name = kernel.bind(args)
            builder.set_grid_dim(*grid)
            for index in itertools.product(*map(range, grid)):
                builder.set_grid_idx(*index)
                function(*positional, **by_name)

    def _interpreted(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        function = self._functions.get(fn)
        if function is None:
            function = self._functions[fn] = _rewritten(fn)
        return function

    @contextmanager
    def _patched(self) -> Iterator[None]:
        with self.lock:
            if self._running:
                yield
                return
            if self._changes is None:
                self._changes = [
                    *_language_changes(),
                    *low_precision.changes(),
                    self._device_call(),
                ]
            with AttributePatches() as patches:
                self._running = True
                try:
                    for owner, name, value in self._changes:
                        patches.set(owner, name, value)
                    yield
                finally:
                    self._running = False

    def _device_call(self) -> Change:
        # A @triton.jit function called from a kernel; anywhere else Triton raises.
        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            return self._interpreted(function.fn)(*args, **kwargs)

        return jit.JITFunction, "__call__", call


@contextmanager
def _grid_kept(builder: Any) -> Iterator[None]:
    # A signal handler may launch a kernel in the middle of another one's run.
    before = {name: getattr(builder, name, MISSING) for name in ("grid_dim", "grid_idx")}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is not MISSING:
                setattr(builder, name, value)


def _rewritten(fn: Callable[..., Any]) -> Callable[..., Any]:
    # On a copy: Triton's rewriter writes some hundred names into the function's globals.
    namespace = dict(fn.__globals__)
    namespace.update(inspect.getclosurevars(fn).nonlocals)  # rewritten source has no closure
    copy = types.FunctionType(fn.__code__, namespace, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    copy.__annotations__ = fn.__annotations__
    copy.__module__ = fn.__module__
    copy.__qualname__ = fn.__qualname__ + _SUFFIX
    try:
        function = triton_interpreter.InterpretedFunction(copy).rewriter.rewrite_ast()
    finally:
        registry = getattr(jit, "_triton_jit_function_registry", {})  # from Triton 3.7 on
        registry.pop(f"{copy.__module__}:{copy.__qualname__}", None)
    return function  # type: ignore[no-any-return]


def _language_changes() -> list[Change]:
    """What the interpreter changes in triton.language, found by letting it and undoing it."""
    classes = {value for value in vars(tl.core).values() if isinstance(value, type)}
    owners = [tl, tl.core, tl.math, *classes]
    before = [dict(vars(owner)) for owner in owners]
    triton_interpreter._patch_lang(types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    changes: list[Change] = []
    with AttributePatches() as undo:
        for owner, original in zip(owners, before, strict=True):
            for name, value in dict(vars(owner)).items():
                if original.get(name, MISSING) is not value:
                    changes.append((owner, name, value))
                    undo.adopt(owner, name, original.get(name, MISSING))
    # Triton <= 3.6 calls int() on a one-element array, an error from NumPy 2.4 on.
    return [
        (owner, name, _as_index if name == "__index__" else value) for owner, name, value in changes
    ]


def _as_index(scalar: Any) -> int:
    return int(scalar.handle.data.reshape(-1)[0])

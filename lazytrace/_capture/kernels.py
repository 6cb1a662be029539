"""What is known of each compiled kernel: its entry for the hook, its description for the trace."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import attrs

from lazytrace._roles.roles import kernel_roles
from lazytrace.records import KernelInfo, Role

if TYPE_CHECKING:
    from lazytrace._capture.describe import ArgSet
    from lazytrace._capture.pending import Run
    from lazytrace._capture.repeat import Repeat
    from lazytrace._capture.views import TensorView

_STAGES = ("ttir", "ttgir", "llir", "ptx", "amdgcn")
_MAX_SOURCE = 200_000


@attrs.define(eq=False)
class KernelEntry:
    """One compiled kernel as the hook knows it.

    ``samples_left`` counts the eager launches whose values are still to be read (None: all);
    ``last`` is the kernel's latest run, which an identical launch joins.
    """

    id: int
    key: int  # the kernel's id()
    ref: weakref.ref[Any]
    name: str
    traced: bool
    arg_names: tuple[str, ...]
    constexprs: frozenset[int]
    samples_left: int | None
    info: KernelInfo
    last: Run | None = None
    first: bool = True  # not launched yet
    arg_sets: dict[tuple[Any, ...], ArgSet] = attrs.field(factory=dict)
    written: bool = False
    _has_roles: bool = False

    def find_roles(self) -> None:
        """Adds what the kernel may do with each argument; not for the hook: it reads the TTIR."""
        compiled = None if self._has_roles else self.ref()
        if compiled is not None:
            self._has_roles = True
            found = kernel_roles(compiled)
            self.info = attrs.evolve(
                self.info,
                roles=found.by_path,
                reads_unknown=found.reads_unknown,
                writes_unknown=found.writes_unknown,
            )

    def written_views(self, args: ArgSet) -> Iterator[TensorView]:
        """The tensors of a set of arguments that the kernel may write."""
        for path, view in args.views:
            if self.info.roles.get(path) is not Role.READ:
                yield view


@attrs.define
class KernelRegistry:
    """The entries of all compiled kernels that were launched and live, by their id().

    ``repeats`` has, for a kernel whose launches can be recognised, what records them.
    """

    _traces: Callable[[str], bool]
    _eager_samples: int | None
    _with_ir: bool
    repeats: dict[int, Repeat] = attrs.field(factory=dict)
    _known: dict[int, KernelEntry] = attrs.field(factory=dict)
    _ids: Iterator[int] = attrs.field(factory=itertools.count)

    def entry(self, kernel: Any) -> KernelEntry:
        """The entry of a kernel, made when it is first launched."""
        entry = self._known.get(id(kernel))
        if entry is None:
            entry = self._known[id(kernel)] = self._make(kernel)
        return entry

    def _forgets(self, key: int) -> Callable[[object], None]:
        def forget(_: object) -> None:
            # Runs where the kernel dies, before another object can have its id().
            self._known.pop(key, None)
            self.repeats.pop(key, None)

        return forget

    def _make(self, kernel: Any) -> KernelEntry:
        src = kernel.src
        function = getattr(src, "fn", None)
        params = getattr(function, "params", ())
        name = str(kernel.name)
        return KernelEntry(
            id=next(self._ids),
            key=id(kernel),
            ref=weakref.ref(kernel, self._forgets(id(kernel))),
            name=name,
            traced=self._traces(name),
            arg_names=tuple(getattr(function, "arg_names", ())),
            constexprs=frozenset(
                position for position, param in enumerate(params) if param.is_constexpr
            ),
            samples_left=self._eager_samples,
            info=_info(kernel, function, with_ir=self._with_ir),
        )


def _info(kernel: Any, function: Any, *, with_ir: bool) -> KernelInfo:
    """The kernel's description; holds strings and numbers only, so that the kernel may die."""
    metadata = kernel.metadata
    target = getattr(metadata, "target", None)
    file, line = _place(function)
    source, missing = _source(function)
    return KernelInfo(
        name=str(kernel.name),
        hash=str(kernel.hash),
        file=file,
        line=line,
        arch=getattr(target, "arch", None),
        backend=getattr(target, "backend", None),
        num_warps=getattr(metadata, "num_warps", None),
        num_stages=getattr(metadata, "num_stages", None),
        num_ctas=getattr(metadata, "num_ctas", None),
        shared=getattr(metadata, "shared", None),
        maxnreg=getattr(metadata, "maxnreg", None),
        n_regs=getattr(kernel, "n_regs", None),
        n_spills=getattr(kernel, "n_spills", None),
        cooperative=getattr(metadata, "launch_cooperative_grid", None),
        pdl=getattr(metadata, "launch_pdl", None),
        global_scratch_size=getattr(metadata, "global_scratch_size", None),
        profile_scratch_size=getattr(metadata, "profile_scratch_size", None),
        triton_version=getattr(metadata, "triton_version", None),
        source=source,
        source_missing=missing,
        ir=_ir(kernel) if with_ir else None,
    )


def _place(function: Any) -> tuple[str | None, int | None]:
    python = getattr(function, "fn", None)
    code = getattr(python, "__code__", None)
    if code is None:
        return None, None
    return code.co_filename, code.co_firstlineno


def _source(function: Any) -> tuple[str | None, str | None]:
    if function is None:
        return None, "the kernel was compiled from IR, not from Python"
    text = getattr(function, "raw_src", None) or getattr(function, "src", None)
    if isinstance(text, (list, tuple)):
        text = "".join(text)
    if not isinstance(text, str):
        return None, "Triton kept no source text of this kernel"
    if len(text) > _MAX_SOURCE:
        return text[:_MAX_SOURCE], f"cut at {_MAX_SOURCE} of {len(text)} characters"
    return text, None


def _ir(kernel: Any) -> dict[str, str]:
    asm = getattr(kernel, "asm", {})
    return {stage: asm[stage] for stage in _STAGES if isinstance(asm.get(stage), str)}

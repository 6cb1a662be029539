"""From the lines of a trace to finished launch records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

import attrs

from lazytrace.config import matches
from lazytrace.lines import (
    ArgsLine,
    CaptureLine,
    EndLine,
    KernelLine,
    LaunchLine,
    Line,
    ProblemLine,
    ValuesLine,
)
from lazytrace.problems import Problem
from lazytrace.records import (
    Arg,
    ArgState,
    CaptureRef,
    CaptureState,
    Coverage,
    DescriptorArg,
    KernelInfo,
    LaunchRecord,
    LaunchState,
    Pool,
    Reading,
    Session,
    TensorArg,
    TupleArg,
    parts,
)

_NO_READINGS: Mapping[str, Reading] = {}
_UNREAD = {
    CaptureState.FAILED: Reading(ArgState.SKIPPED, "capture_failed"),
    CaptureState.NEVER_REPLAYED: Reading(ArgState.EXPIRED, "never_replayed"),
}
_ENDED = {
    CaptureState.FAILED: LaunchState.CAPTURE_FAILED,
    CaptureState.NEVER_REPLAYED: LaunchState.NEVER_REPLAYED,
    CaptureState.OPEN: LaunchState.PENDING,
}


@attrs.define
class Joiner:
    """Collects lines and answers with records; a later line of the same id replaces an earlier.

    A launch is answered once its kernel, its arguments and its capture are known; until then
    it counts as ``incomplete`` in the coverage.
    """

    session: Session | None = None
    end: EndLine | None = None
    _kernels: dict[int, KernelInfo] = attrs.field(factory=dict)
    _args: dict[int, Mapping[str, Arg]] = attrs.field(factory=dict)
    _captures: dict[int, CaptureLine] = attrs.field(factory=dict)
    _launches: dict[int, LaunchLine] = attrs.field(factory=dict)
    _readings: dict[int, Mapping[str, Reading]] = attrs.field(factory=dict)
    _problems: dict[Problem, None] = attrs.field(factory=dict)

    @property
    def problems(self) -> list[Problem]:
        """The problems in the order in which they came, equal ones once."""
        return list(self._problems)

    @property
    def kernels(self) -> list[KernelInfo]:
        """The kernels by id."""
        return [kernel for _, kernel in sorted(self._kernels.copy().items(), key=itemgetter(0))]

    def add(self, line: Line) -> None:
        """Take a line in."""
        if isinstance(line, LaunchLine):
            self._launches[line.id] = line
        elif isinstance(line, ValuesLine):
            self._add_readings(line)
        elif isinstance(line, ArgsLine):
            self._args[line.id] = line.args
        elif isinstance(line, KernelLine):
            self._kernels[line.id] = line.kernel
        elif isinstance(line, CaptureLine):
            self._captures[line.id] = line
        elif isinstance(line, ProblemLine):
            self._problems[line.problem] = None
        elif isinstance(line, EndLine):
            self.end = line
        elif self.session is None:
            self.session = line
        else:
            self.session = attrs.evolve(self.session, rank=line.rank, world_size=line.world_size)

    def _add_readings(self, line: ValuesLine) -> None:
        # Launches whose readings were one mapping before stay so: records() joins them once.
        merged: dict[int, Mapping[str, Reading]] = {}
        for launch in line.launches:
            earlier = self._readings.get(launch, _NO_READINGS)
            if id(earlier) not in merged:
                merged[id(earlier)] = {**earlier, **line.readings}
            self._readings[launch] = merged[id(earlier)]

    def forget_launch(self, number: int) -> None:
        """Drop a launch and its readings."""
        self._launches.pop(number, None)
        self._readings.pop(number, None)

    def forget_args(self, number: int) -> None:
        """Drop a set of arguments."""
        self._args.pop(number, None)

    def forget_capture(self, number: int) -> None:
        """Drop a capture."""
        self._captures.pop(number, None)

    def records(
        self,
        kernel: str | Iterable[str] | None = None,
        *,
        captured: bool | None = None,
        expand: bool = False,
    ) -> list[LaunchRecord]:
        """The launches, oldest first: those that ``select`` chooses."""
        wanted = None if kernel is None else self._kernels_named(kernel)
        joined = _Joined()
        found = []
        # A copy: another thread may take lines in, and forget others, meanwhile.
        for _, line in sorted(self._launches.copy().items(), key=itemgetter(0)):
            if wanted is not None and line.kernel not in wanted:
                continue
            if captured is not None and captured is (line.capture is None):
                continue
            record = self._record(line, joined)
            if record is not None:
                found.append(record)
        return expanded(found) if expand else found

    def _kernels_named(self, kernel: str | Iterable[str]) -> set[int]:
        patterns = _patterns(kernel)
        return {n for n, known in self._kernels.copy().items() if matches(known.name, patterns)}

    def _record(self, line: LaunchLine, joined: _Joined) -> LaunchRecord | None:
        kernel, args = self._kernels.get(line.kernel), self._args.get(line.args)
        capture = None if line.capture is None else self._captures.get(line.capture)
        if kernel is None or args is None or (line.capture is not None and capture is None):
            return None
        readings = self._readings.get(line.id, _NO_READINGS)
        shown, pending = joined.args(line, kernel, args, capture, readings)
        return LaunchRecord(
            id=line.id,
            kernel=kernel,
            grid=line.grid,
            outcome=line.outcome,
            stream=line.stream,
            device=line.device,
            thread=line.thread,
            time_ns=line.time_ns,
            count=line.count,
            phase=line.phase,
            mark=line.mark,
            capture=None if capture is None else _place(line, capture),
            state=_state(capture, pending),
            replays=0 if capture is None else capture.replays,
            args=shown,
            call_site=line.call_site,
        )

    def coverage(self, records: list[LaunchRecord] | None = None) -> Coverage:
        """How much was looked at: tensor arguments count once for each run that has them.

        ``records`` are this joiner's own, where the caller has them already.
        """
        records = self.records() if records is None else records
        states = _count_states(records)
        end, captures = self.end, list(self._captures.values())
        dropped = dict(end.dropped) if end else {}
        if len(self._launches) > len(records):
            dropped["incomplete"] = len(self._launches) - len(records)
        return Coverage(
            replays_read=sum(capture.replays_read for capture in captures),
            replays_run=sum(capture.replays for capture in captures),
            materialized=states[ArgState.MATERIALIZED],
            expired=states[ArgState.EXPIRED],
            skipped=states[ArgState.SKIPPED],
            failed=states[ArgState.FAILED],
            pending=states[ArgState.PENDING],
            unseen_launches=end.unseen_launches if end else 0,
            dropped=dropped,
        )


@attrs.define
class _Joined:
    """Joined arguments, each kept for the launches that share all that they are joined from.

    The identities in the keys are of objects that the joiner holds; it lives for one answer.
    """

    _known: dict[Any, tuple[Mapping[str, Arg], bool]] = attrs.field(factory=dict)

    def args(
        self,
        line: LaunchLine,
        kernel: KernelInfo,
        args: Mapping[str, Arg],
        capture: CaptureLine | None,
        readings: Mapping[str, Reading],
    ) -> tuple[Mapping[str, Arg], bool]:
        """The arguments by path, and whether a tensor's values are still to come."""
        key = (line.args, line.kernel, line.capture, id(readings), line.values, line.reason)
        if key not in self._known:
            joining = _Joining(line, kernel, capture, readings)
            shown = {path: joining.join(path, arg) for path, arg in args.items()}
            self._known[key] = shown, joining.pending
        return self._known[key]


@attrs.define
class _Joining:
    """Joins one set of arguments with what one kind of launch knows about them."""

    line: LaunchLine
    kernel: KernelInfo
    capture: CaptureLine | None
    readings: Mapping[str, Reading]
    pending: bool = False
    _tensors: dict[str, TensorArg] = attrs.field(factory=dict)

    def join(self, path: str, arg: Arg) -> Arg:
        """The argument at this path; a container shows the very tensors that its paths do."""
        if isinstance(arg, TensorArg):
            if path not in self._tensors:
                self._tensors[path] = self._tensor(path, arg)
            return self._tensors[path]
        if isinstance(arg, TupleArg):
            items = tuple(self.join(inner, part) for inner, part in parts(path, arg))
            return attrs.evolve(arg, items=items)
        if isinstance(arg, DescriptorArg):
            for inner, part in parts(path, arg):
                return attrs.evolve(arg, base=self.join(inner, part))
        return arg

    def _tensor(self, path: str, arg: TensorArg) -> TensorArg:
        reading = self.readings.get(path) or self._unread(arg)
        if reading.state is ArgState.PENDING and self.capture is not None:
            reading = _UNREAD.get(self.capture.state, reading)
        self.pending = self.pending or reading.state is ArgState.PENDING
        return attrs.evolve(
            arg,
            pool=self._pool(arg),
            role=self.kernel.roles.get(path, arg.role),
            state=reading.state,
            reason=reading.reason,
            values=reading.values,
            observed=reading.observed,
            values_after=reading.values_after,
            observed_after=reading.observed_after,
            data=reading.data,
            data_after=reading.data_after,
            data_reason=reading.data_reason,
        )

    def _unread(self, arg: TensorArg) -> Reading:
        if arg.numel == 0:
            return Reading(ArgState.EMPTY)
        return Reading(self.line.values, self.line.reason)

    def _pool(self, arg: TensorArg) -> Pool:
        storages = None if self.capture is None else self.capture.graph_storages
        if storages is None:
            return Pool.UNKNOWN
        return Pool.GRAPH if arg.storage in storages else Pool.EXTERNAL


def _place(line: LaunchLine, capture: CaptureLine) -> CaptureRef:
    index = 0 if line.index is None else line.index
    return CaptureRef(capture.graph, capture.name, capture.epoch, index, capture.cuda_id)


def _state(capture: CaptureLine | None, pending: bool) -> LaunchState:
    if capture is not None and capture.state in _ENDED:
        return _ENDED[capture.state]
    return LaunchState.PENDING if pending else LaunchState.COMPLETE


def _count_states(records: list[LaunchRecord]) -> Counter[ArgState]:
    sharing = Counter(id(record.args) for record in records)
    states: Counter[ArgState] = Counter()
    for args in {id(record.args): record.args for record in records}.values():
        for arg in args.values():
            if isinstance(arg, TensorArg):
                states[arg.state] += sharing[id(args)]
    return states


def select(
    records: Iterable[LaunchRecord],
    kernel: str | Iterable[str] | None = None,
    *,
    captured: bool | None = None,
    expand: bool = False,
) -> list[LaunchRecord]:
    """The records of these kernels, captured ones, others (False) or both (None).

    ``kernel`` is an fnmatch pattern, case and all, or a list of them; ``expand=True`` gives one
    record per launch of a run.
    """
    patterns = None if kernel is None else _patterns(kernel)
    found = [
        record
        for record in records
        if (patterns is None or matches(record.kernel.name, patterns))
        and (captured is None or captured is (record.capture is not None))
    ]
    return expanded(found) if expand else found


def expanded(records: Iterable[LaunchRecord]) -> list[LaunchRecord]:
    """One record per launch of each run."""
    return [single for record in records for single in record.expanded()]


def _patterns(kernel: str | Iterable[str]) -> tuple[str, ...]:
    return (kernel,) if isinstance(kernel, str) else tuple(kernel)

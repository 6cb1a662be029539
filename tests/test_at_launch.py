"""values="at_launch": each launch has the values that it found and left, also in a graph."""

from __future__ import annotations

import threading

import at_launch_kernels
import attrs
import case_kernels
import kernels
import pytest
import torch
import triton
import triton.language as tl
from at_launch_kernels import Model

import lazytrace
from lazytrace._simulator.probes import NODE_NAME, SimulatedProbes
from lazytrace._simulator.runtime import SimulatedRuntime


def ones(device, size=4):
    return torch.ones(size, device=device.torch_device)


def double(x):
    kernels.scale_[(1,)](x, x.numel(), 2.0, BLOCK=4)


def at_launch(**options):
    return lazytrace.trace(values="at_launch", **options)


def sides(record, path="x"):
    """The maxima before and after a launch, with the replays that they are of."""
    arg = record.args[path]
    return (
        None if arg.values is None else (arg.values.max, arg.observed.replay),
        None if arg.values_after is None else (arg.values_after.max, arg.observed_after.replay),
    )


def non_finite(tracer):
    return [problem for problem in tracer.problems() if problem.kind == "non_finite"]


# What a record says


@pytest.mark.core
def test_in_place_doubling_shows_each_launch_its_own_values_on_every_replay(device):
    """C17: x *= 2 three times in one graph is 1, 2, 4, 8 on the first replay and on the second."""
    x = ones(device)
    double(x)
    with at_launch() as tracer:
        graph = case_kernels.captured(lambda: [double(x), double(x), double(x)])
        for replay in (1, 2):
            x.fill_(1.0)
            graph.replay()
            device.synchronize()
            records = tracer.records()
            assert [sides(record) for record in records] == [
                ((1.0, replay), (2.0, replay)),
                ((2.0, replay), (4.0, replay)),
                ((4.0, replay), (8.0, replay)),
            ]
    observed = records[0].args["x"].observed
    assert (observed.point, observed.overwritten, observed.raced) == ("at_launch", "no", False)
    assert records[0].args["x"].observed_after.point == "after_launch"
    assert [(r.count, r.state, r.args["x"].state) for r in records] == [
        (1, "complete", "materialized")
    ] * 3
    assert [r.capture.index for r in records] == [0, 1, 2]


@pytest.mark.core
def test_an_eager_launch_has_what_it_found_and_what_it_left(device):
    """The values are those at the launch, whatever the program did to the tensor since."""
    x, out = torch.arange(4.0, device=device.torch_device), ones(device)
    with at_launch() as tracer:
        kernels.copy[(1,)](x, out, 4, BLOCK=4)
        x.fill_(float("nan"))
        out.fill_(7.0)
        device.synchronize()
        (record,) = tracer.records()
    assert sides(record, "x") == ((3.0, None), None)
    assert sides(record, "out") == (None, (3.0, None))
    assert record.args["out"].values_after.mean == 1.5
    assert record.args["x"].values.zero_count == 1
    assert record.args["out"].observed_after.overwritten == "no"
    assert not non_finite(tracer)


def test_an_argument_of_unknown_role_is_read_before_and_after(device):
    """What the kernel is not known to leave alone is read on both sides."""
    x = ones(device)
    with at_launch() as tracer:
        case_kernels.accumulate[(1,)](x, x, 4, BLOCK=4)
        device.synchronize()
        (record,) = tracer.records()
    assert sides(record, "out") == ((1.0, None), (2.0, None))


def test_eager_samples_do_not_bound_what_is_read_at_the_launch(simulated):
    """Every eager launch is a run of its own with its own values."""
    x = ones(simulated)
    with at_launch(eager_samples=1) as tracer:
        for _ in range(5):
            double(x)
        records = tracer.records()
    assert [sides(record)[0][0] for record in records] == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_launches_with_the_same_arguments_share_their_description(simulated, tmp_path):
    """Captured launches fold in description only: one args line, three launches with values."""
    x = ones(simulated)
    with at_launch(out=tmp_path / "t.ndjson") as tracer:
        graph = case_kernels.captured(lambda: [double(x), double(x), double(x)])
        graph.replay()
        simulated.synchronize()
    lines = tracer.path.read_text().splitlines()
    assert sum('"type":"args"' in line for line in lines) == 1
    trace = lazytrace.read(tracer.path)
    assert [sides(record) for record in trace.launches] == [
        ((1.0, 1), (2.0, 1)),
        ((2.0, 1), (4.0, 1)),
        ((4.0, 1), (8.0, 1)),
    ]
    assert any("timings are not comparable" in note for note in trace.session.notes)


def test_tensors_in_tuples_are_read_under_their_paths(device):
    """A tuple's tensors are inputs like any other."""
    first, second, out = ones(device), 3 * ones(device), torch.zeros_like(ones(device))
    with at_launch() as tracer:
        kernels.weighted_sum[(1,)]((first, second), out, (1.0, 2.0), 4, BLOCK=4)
        device.synchronize()
        (record,) = tracer.records()
    assert record.args["tensors[0]"].values.max == 1.0
    assert record.args["tensors[1]"].values.max == 3.0
    assert record.args["out"].values_after.max == 7.0


@pytest.mark.parametrize("view", ["transposed", "expanded", "offset", "overlapping"])
def test_views_are_read_as_views(device, view):
    """Strides, offsets and repetition are those of the argument, not of its storage."""
    base = torch.arange(12.0, device=device.torch_device)
    x = {
        "transposed": base.reshape(3, 4).t(),
        "expanded": base[2:3].expand(5),
        "offset": base[7:9],
        "overlapping": base.as_strided((3, 3), (1, 1), 1),
    }[view]
    with at_launch() as tracer:
        case_kernels.ignore[(1,)](x, base, 5)
        device.synchronize()
        (record,) = tracer.records()
    values = record.args["x"].values
    if values is None:  # the kernel reads nothing: no role asks for it
        pytest.fail("an argument that is neither read nor written counts as read")
    assert (values.min, values.max) == (x.min().item(), x.max().item())
    assert values.mean == pytest.approx(x.double().mean().item())


# Captures


def test_temporaries_freed_before_the_capture_ended_have_their_values(device):
    """Memory of the graph's own pool is read where the launch used it, not when it is reused."""
    z = ones(device)
    double(z)

    def body():
        for factor in (2.0, 3.0):
            temporary = z * factor
            double(temporary)
            del temporary

    z.fill_(1.0)
    with at_launch() as tracer:
        graph = case_kernels.captured(body)
        graph.replay()
        device.synchronize()
        records = tracer.records()
    assert [sides(record) for record in records] == [((2.0, 1), (4.0, 1)), ((3.0, 1), (6.0, 1))]


def test_a_nan_that_is_cleaned_again_is_held_against_the_launch_that_made_it(device):
    """C16: launch 3 of 6 divides by zero, launch 5 cleans: launch 3 is named, made_here."""
    x, y = ones(device, 8), ones(device, 8)
    y[6] = 0.0
    x[6] = 0.0

    def body():
        a = torch.empty_like(x)
        kernels.copy[(1,)](x, a, 8, BLOCK=8)
        kernels.scale_[(1,)](a, 8, 2.0, BLOCK=8)
        b = torch.empty_like(x)
        at_launch_kernels.divide[(1,)](a, y, b, 8, BLOCK=8)
        kernels.scale_[(1,)](b, 8, 0.5, BLOCK=8)
        at_launch_kernels.clean_[(1,)](b, 8, BLOCK=8)
        kernels.copy[(1,)](b, x, 8, BLOCK=8)

    with at_launch() as tracer:
        graph = case_kernels.captured(body)
        graph.replay()
        device.synchronize()
        problems = non_finite(tracer)
        records = tracer.records()
    first = problems[0]
    assert (first.kernel, first.argument, first.launch) == ("divide", "out", records[2].id)
    assert (first.side, first.origin, first.index) == ("output", "made_here", 6)
    assert (first.replay, first.evidence, first.graph) == (1, "after_launch", 0)
    assert [(p.kernel, p.side, p.origin) for p in problems[1:]] == [
        ("scale_", "input", "came_in"),
        ("clean_", "input", "came_in"),
    ]
    assert records[5].args["x"].values.nan_count == 0


@pytest.mark.core
def test_the_first_bad_replay_is_kept_when_the_last_one_is_clean(device):
    """C9: values are those of the last replay and say so; the problem names the first bad one."""
    x = ones(device)
    double(x)
    with at_launch() as tracer:
        graph = case_kernels.captured(lambda: double(x))
        for value in (1.0, float("nan"), 5.0):
            x.fill_(value)
            graph.replay()
            device.synchronize()
        (record,) = tracer.records()
        (problem,) = non_finite(tracer)
    assert sides(record) == ((5.0, 3), (10.0, 3))
    assert (problem.replay, problem.argument, problem.side) == (2, "x", "input")
    assert (problem.origin, problem.index, problem.evidence) == ("came_in", 0, "at_launch")
    assert record.replays == 3


def test_an_input_that_was_bad_before_does_not_explain_a_later_output(device):
    """The origin is that of the replay that is named: made_here where the inputs were finite."""
    x, y, out = ones(device), ones(device), ones(device)
    launch = lambda: at_launch_kernels.divide[(1,)](x, y, out, 4, BLOCK=4)  # noqa: E731
    at_launch_kernels.warmed(launch)
    with at_launch() as tracer:
        graph = case_kernels.captured(launch)
        for numerator, denominator in ((0.0, 0.0), (1.0, float("nan")), (1.0, 1.0)):
            x.fill_(numerator)
            y.fill_(denominator)
            graph.replay()
            device.synchronize()
        found = {problem.argument: problem for problem in non_finite(tracer)}
    assert (found["out"].replay, found["out"].origin) == (1, "made_here")
    assert (found["y"].replay, found["y"].origin) == (2, "came_in")


def test_later_replays_are_read_on_request_and_not_by_a_synchronisation(device):
    """A synchronisation reads the first replay only; records() brings the values up to date."""
    x = ones(device)
    double(x)
    x.fill_(1.0)
    with at_launch() as tracer:
        graph = case_kernels.captured(lambda: double(x))
        shown = []
        for _ in range(3):
            graph.replay()
            device.synchronize()
            memory = tracer._assembly.memory.records()
            shown.append(sides(memory[0])[1])
        current = sides(tracer.records()[0])
    assert shown == [(2.0, 1)] * 3
    assert current == ((4.0, 3), (8.0, 3))


@pytest.mark.parametrize("end", ["reset", "destroyed", "disabled"])
def test_the_last_replays_values_outlive_the_graph(device, end):
    """A graph that is gone, or a tracer that ends, leaves the values of the last replay."""
    x = ones(device)
    double(x)
    x.fill_(1.0)
    with at_launch() as tracer:
        graph = case_kernels.captured(lambda: double(x))
        for _ in range(2):
            graph.replay()
            device.synchronize()
        if end == "reset":
            graph.reset()
        elif end == "destroyed":
            del graph
    assert sides(tracer.records()[0]) == ((2.0, 2), (4.0, 2))


def test_a_graph_that_never_ran_has_no_values(device):
    """Its launches are never_replayed, as in every mode."""
    x = ones(device)
    with at_launch() as tracer:
        case_kernels.captured(lambda: double(x)).reset()
        (record,) = tracer.records()
    assert (record.state, record.args["x"].state) == ("never_replayed", "expired")


def test_two_streams_give_each_launch_its_own_values(device):
    """C8: forked and joined in the capture, replayed often; each argument keeps its values."""
    x, y = ones(device), 10 * ones(device)
    double(x)
    x.fill_(1.0)
    side = torch.cuda.Stream()

    def body():
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        double(x)
        with torch.cuda.stream(side):
            double(y)
            double(y)
        double(x)
        main.wait_stream(side)
        kernels.axpy[(1,)](x, y, x, 4, 1.0, BLOCK=4)

    with at_launch() as tracer:
        graph = case_kernels.captured(body)
        for replay in range(1, 6):
            x.fill_(1.0)
            y.fill_(10.0)
            graph.replay()
            device.synchronize()
            records = tracer.records()
            assert [sides(record) for record in records[:4]] == [
                ((1.0, replay), (2.0, replay)),
                ((10.0, replay), (20.0, replay)),
                ((20.0, replay), (40.0, replay)),
                ((2.0, replay), (4.0, replay)),
            ]
            assert sides(records[4], "out") == (None, (44.0, replay))
            assert sides(records[4], "x") == ((4.0, replay), None)


def test_an_argument_that_aliases_an_output_is_read_as_the_launch_found_it(device):
    """The same memory passed twice: what is read has its old values, what is written its new."""
    x = ones(device)
    kernels.axpy[(1,)](x, x, x, 4, 2.0, BLOCK=4)
    x.fill_(1.0)
    with at_launch() as tracer:
        graph = case_kernels.captured(lambda: kernels.axpy[(1,)](x, x, x, 4, 2.0, BLOCK=4))
        graph.replay()
        device.synchronize()
        (record,) = tracer.records()
    assert sides(record, "x") == sides(record, "y") == ((1.0, 1), None)
    assert sides(record, "out") == (None, (3.0, 1))


# The program is not changed


def test_a_graph_has_the_users_nodes_and_our_probes(simulated):
    """Two probes to a launch that reads and writes, and none in the other modes."""
    x, out = ones(simulated), ones(simulated)

    def body():
        double(x)
        kernels.copy[(1,)](x, out, 4, BLOCK=4)

    names = {}
    for values in ("off", "deferred", "at_launch"):
        with lazytrace.trace(values=values):
            names[values] = simulated.simulation.node_names(case_kernels.captured(body))
    assert names["off"] == names["deferred"] == ["scale_", "copy"]
    assert names["at_launch"] == [NODE_NAME, "scale_", NODE_NAME, NODE_NAME, "copy", NODE_NAME]
    assert NODE_NAME.startswith("lazytrace_")


def test_the_outputs_are_those_of_the_untraced_program_to_the_bit(device):
    """The same model, traced and not, eager and captured."""
    at_launch_kernels.warmed(Model.on(device.torch_device).run)
    outputs = []
    for traced in (False, True):
        for captured in (False, True):
            model = Model.on(device.torch_device)
            with at_launch() if traced else lazytrace.paused():
                if captured:
                    graph = case_kernels.captured(model.run)
                    graph.replay()
                    graph.replay()
                else:
                    model.run()
                device.synchronize()
            outputs.append(model.out.cpu())
    assert all(torch.equal(outputs[0], other) for other in outputs[1:])


@pytest.mark.parametrize("injected", [None, *range(Model.LAUNCHES)])
def test_the_launch_that_makes_a_nan_is_named_wherever_it_is(device, injected):
    """A model of 25 launches, one NaN injected at each of 24 in turn: that launch comes first."""
    at_launch_kernels.warmed(Model.on(device.torch_device).run)
    model = Model.on(device.torch_device, injected)
    with at_launch() as tracer:
        graph = case_kernels.captured(model.run)
        graph.replay()
        device.synchronize()
        problems = non_finite(tracer)
        records = tracer.records()
    assert model.launched == Model.LAUNCHES
    assert len(records) == Model.LAUNCHES + 1  # the last one cleans
    assert torch.isfinite(model.out).all()
    if injected is None:
        assert problems == []
        return
    first = problems[0]
    assert first.launch == records[injected].id
    assert (first.side, first.origin) == ("output", "made_here")
    assert (first.replay, first.index) == (1, 5)
    assert {p.origin.value for p in problems[1:]} <= {"came_in"}


# What is not read


def test_autotune_trials_are_described_only(device):
    """Statistics in a trial would change which configuration wins."""

    @triton.autotune([triton.Config({"BLOCK": 4}), triton.Config({"BLOCK": 8})], key=["n"])
    @triton.jit
    def tuned(x, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        tl.store(x + offsets, tl.load(x + offsets, mask=mask) + 1, mask=mask)

    for trial_values, state in ((False, "off"), (True, "materialized")):
        x = ones(device)
        tuned.cache.clear()
        with at_launch(trial_values=trial_values) as tracer:
            tuned[lambda meta: (triton.cdiv(4, meta["BLOCK"]),)](x, 4)
            device.synchronize()
            records = tracer.records()
        trials = [record for record in records if record.phase == "trial"]
        run = [record for record in records if record.phase == "run"]
        assert trials
        assert {record.args["x"].state.value for record in trials} == {state}
        assert [record.args["x"].state for record in run] == ["materialized"]


def test_an_empty_grid_and_an_excluded_kernel_have_no_probe(simulated):
    """Nothing runs, or nothing was asked for: nothing is added."""
    x = ones(simulated)

    def body():
        kernels.scale_[(0,)](x, 4, 2.0, BLOCK=4)
        case_kernels.accumulate[(1,)](x, x, 4, BLOCK=4)

    with at_launch(exclude="accum*") as tracer:
        graph = case_kernels.captured(body)
        names = simulated.simulation.node_names(graph)
        (record,) = tracer.records()
    assert names == ["accumulate"]
    assert (record.outcome, record.args["x"].reason) == ("empty_grid", "not_executed")


def test_an_empty_tensor_is_empty(device):
    """A tensor without elements has no values and is no error."""
    x, nothing = ones(device), torch.empty(0, device=device.torch_device)
    with at_launch() as tracer:
        case_kernels.ignore[(1,)](nothing, x, 5)
        device.synchronize()
        (record,) = tracer.records()
    assert record.args["x"].state == "empty"
    assert record.state == "complete"


def test_a_dtype_without_statistics_is_stated(device):
    """Its argument is skipped with the reason, the others of the launch are read."""
    x = ones(device)
    odd = triton.reinterpret(torch.ones(4, dtype=torch.int8, device=x.device), tl.float8e4b15)
    with at_launch() as tracer:
        graph = case_kernels.captured(lambda: case_kernels.ignore[(1,)](x, odd, 5))
        graph.replay()
        device.synchronize()
        (record,) = tracer.records()
    assert record.args["x"].values.max == 1.0
    assert (record.args["y"].state, record.args["y"].values) == ("skipped", None)
    assert "no statistics of" in record.args["y"].reason


def test_without_room_for_slots_launches_are_skipped_and_counted(simulated):
    """The record says no_slot, the trace how many; the program goes on."""
    x = ones(simulated)
    simulated.simulation.probe_slots = 3
    with at_launch() as tracer:
        graph = case_kernels.captured(lambda: [double(x), double(x), double(x)])
        graph.replay()
        simulated.synchronize()
        records = tracer.records()
        assert [(r.args["x"].state, r.args["x"].reason) for r in records] == [
            ("materialized", None),
            ("skipped", "no_slot"),
            ("skipped", "no_slot"),
        ]
        (problem,) = tracer.problems()
        assert (problem.kind, problem.message) == ("dropped", "2 dropped: no_slot: values")
        names = simulated.simulation.node_names(graph)
        del graph
        tracer.flush()  # the graph's slots are free again
        double(x)
        assert tracer.records()[-1].args["x"].state == "materialized"
    assert names.count(NODE_NAME) == 2
    assert x[0] == 16.0


def test_eager_launches_have_room_again_after_a_flush(simulated):
    """Slots of eager launches are given back as soon as they were read."""
    x = ones(simulated)
    simulated.simulation.probe_slots = 4
    with at_launch() as tracer:
        for _ in range(3):
            double(x)
            double(x)
            double(x)  # no room
            simulated.synchronize()
        states = [record.args["x"].state.value for record in tracer.records()]
    assert states == ["materialized", "materialized", "skipped"] * 3


@attrs.define
class _Refusing(SimulatedProbes):
    """A device on which the slots cannot be allocated, for as many attempts as it is told."""

    failures: int = 0

    def prepare(self):
        self.failures -= 1
        return "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY" if self.failures >= 0 else None


@attrs.frozen
class _Runtime(SimulatedRuntime):
    failures: int = 0

    def launch_probes(self):
        return _Refusing(self.simulation, failures=self.failures)


def refusing(simulated, failures):
    simulated.simulation.driver.lazytrace_runtime = _Runtime(
        simulated.simulation, failures=failures
    )


def test_a_device_without_memory_for_slots_is_stated_and_tried_again(simulated):
    """The reason is in the record; after the next flush there is another attempt."""
    x = ones(simulated)
    refusing(simulated, 1)
    with at_launch() as tracer:
        double(x)
        double(x)
        tracer.flush()
        double(x)
        states = [(r.args["x"].state.value, r.args["x"].reason) for r in tracer.records()]
        assert states[:2] == [("skipped", "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY")] * 2
        assert states[2] == ("materialized", None)


def test_a_first_launch_inside_a_capture_is_not_prepared(simulated):
    """Nothing is allocated or compiled in a capture; the next eager launch prepares."""
    x = ones(simulated)
    refusing(simulated, 1)
    with at_launch() as tracer:
        tracer._assembly.prober.relieve()
        graph = case_kernels.captured(lambda: double(x))
        double(x)
        later = case_kernels.captured(lambda: double(x))
        states = [(r.args["x"].state.value, r.args["x"].reason) for r in tracer.records()]
    assert simulated.simulation.nodes(later) == 3
    assert states == [("skipped", "not_prepared"), ("materialized", None), ("pending", None)]
    assert simulated.simulation.nodes(graph) == 1


# Slots


def used(tracer):
    return len(tracer._assembly.prober.probes.used)


def test_slots_are_given_back_when_the_graph_is_gone(simulated):
    """Reset, destroyed, failed or never replayed: nothing stays taken."""
    x = ones(simulated)
    with at_launch() as tracer:
        for way in ("reset", "destroyed", "never replayed"):
            graph = case_kernels.captured(lambda: [double(x), double(x)])
            assert used(tracer) == 4
            if way != "never replayed":
                graph.replay()
                simulated.synchronize()
            if way == "reset":
                graph.reset()
            del graph
            tracer.records()
            assert used(tracer) == 0
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(ValueError, match="mine"), torch.cuda.graph(graph):
            double(x)
            raise ValueError("mine")
        del graph
        tracer.records()
        assert used(tracer) == 0


def test_a_graph_inside_another_keeps_its_slots(simulated):
    """The other graph holds a copy of its nodes, which go on writing there."""
    x = ones(simulated)
    with at_launch() as tracer:
        inner = case_kernels.captured(lambda: double(x))
        outer = case_kernels.captured(inner.replay)
        inner.reset()
        tracer.records()
        assert used(tracer) == 2
        outer.replay()
        simulated.synchronize()
        assert x[0] == 2.0


# Hooks


def exit_hooks():
    hook = triton.knobs.runtime.launch_exit_hook
    return list(getattr(hook, "calls", [] if hook is None else [hook]))


@pytest.mark.core
def test_the_exit_hook_is_there_only_while_tracing_at_launch(simulated):
    """One hook, added and removed; none in the other modes."""
    before = exit_hooks()
    with at_launch():
        assert len(exit_hooks()) == len(before) + 1
    with lazytrace.trace():
        assert exit_hooks() == before
    assert exit_hooks() == before


@pytest.mark.core
def test_our_own_hook_counts_as_nobody(simulated):
    """No metadata is built for it, so that no user's launch_metadata function can run."""
    x, seen = ones(simulated), []
    with at_launch():
        compiled = kernels.scale_[(1,)](x, 4, 2.0, BLOCK=4)
        seen.append(compiled.launch_metadata((1,), 0, x, 4, 2.0, 4))
    assert seen == [None]


def test_another_tools_hooks_get_their_metadata(simulated):
    """A hook in either chain is called as ever, and both tools have their data."""
    if not hasattr(triton.knobs.runtime.launch_exit_hook, "add"):
        pytest.skip("this Triton has no chain of hooks")
    x, seen = ones(simulated), []
    hook = lambda metadata: seen.append(metadata.get()["name"])  # noqa: E731
    chain = triton.knobs.runtime.launch_exit_hook
    with at_launch() as tracer:
        chain.add(hook)
        try:
            double(x)
        finally:
            chain.remove(hook)
        (record,) = tracer.records()
    assert seen == ["scale_"]
    assert sides(record) == ((1.0, None), (2.0, None))


def test_a_slot_that_another_tool_holds_is_left_alone(simulated, caplog):
    """A plain callable in the slot: only the values before the launch are read, and it says so."""
    runtime, calls = triton.knobs.runtime, []
    own, held = vars(runtime).get("launch_exit_hook"), runtime.launch_exit_hook
    theirs = lambda metadata: calls.append(metadata)  # noqa: E731
    runtime.launch_exit_hook = theirs
    try:
        x, out = ones(simulated), ones(simulated)
        with at_launch() as tracer:
            kernels.copy[(1,)](x, out, 4, BLOCK=4)
            (record,) = tracer.records()
        assert runtime.launch_exit_hook is theirs
    finally:
        runtime.launch_exit_hook = held
        if own is None:
            del runtime.launch_exit_hook
    assert sides(record, "x") == ((1.0, None), None)
    assert (record.args["out"].state, record.args["out"].reason) == ("skipped", "exit_hook_taken")
    assert len(calls) == 1
    assert "launch_exit_hook" in caplog.text


def test_a_launch_that_fails_leaves_nothing_to_the_next_one(simulated):
    """A hook that raises aborts the launch: what it would have left is not read elsewhere."""
    chain = triton.knobs.runtime.launch_enter_hook
    if not hasattr(chain, "add"):
        pytest.skip("this Triton has no chain of hooks")
    x, y = ones(simulated), 5 * ones(simulated)

    def fail(_):
        raise ValueError("theirs")

    with at_launch() as tracer:
        chain.add(fail)
        try:
            with pytest.raises(ValueError, match="theirs"):
                double(x)
        finally:
            chain.remove(fail)
        double(y)
        first, second = tracer.records()
    assert sides(first) == ((1.0, None), None)
    assert first.args["x"].reason == "launch_failed"
    assert sides(second) == ((5.0, None), (10.0, None))


def test_a_hook_that_launches_has_its_own_values(simulated):
    """A launch from within another launch's hook: each keeps what it found and left."""
    chain = triton.knobs.runtime.launch_enter_hook
    if not hasattr(chain, "add"):
        pytest.skip("this Triton has no chain of hooks")
    x, y = ones(simulated), 5 * ones(simulated)

    def launch(_):
        chain.remove(launch)
        double(y)

    with at_launch() as tracer:
        chain.add(launch)
        double(x)
        outer, inner = tracer.records()
    assert sides(outer) == ((1.0, None), (2.0, None))
    assert sides(inner) == ((5.0, None), (10.0, None))


def test_disabling_inside_a_capture_leaves_a_graph_that_runs(simulated):
    """The capture ends as usual, and its nodes go on writing where they may."""
    x = ones(simulated)
    lazytrace.enable(values="at_launch")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        double(x)
        lazytrace.disable()
        double(x)
    graph.replay()
    assert x[0] == 4.0
    assert lazytrace.records()[0].capture.index == 0


def test_without_a_device_the_records_say_so():
    """A process without CUDA describes launches, and no value is read."""
    tracer = lazytrace.enable(values="at_launch")
    assert tracer._assembly.prober is None or torch.cuda.is_available()
    lazytrace.disable()


def test_threads_launch_and_flush_at_once(simulated):
    """Four threads launch, one flushes all the while: each launch keeps its own values."""
    tensors = [torch.zeros(4) for _ in range(4)]
    at_launch_kernels.bias_[(1,)](tensors[0], 4, 0.0, -1, BLOCK=4)
    stop, failures = threading.Event(), []

    def guarded(body):
        def run():
            try:
                body()
            except Exception as error:  # noqa: BLE001 - shown by the thread that waits
                failures.append(error)

        return threading.Thread(target=run)

    def launching(number):
        def body():
            for _ in range(12):
                at_launch_kernels.bias_[(1,)](tensors[number], 4, 1.0, -1, BLOCK=4)

        return body

    def flushing():
        while not stop.is_set():
            torch.cuda.synchronize()
            tracer.flush()

    with at_launch() as tracer:
        threads = [guarded(launching(number)) for number in range(4)]
        flusher = guarded(flushing)
        for thread in (*threads, flusher):
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        flusher.join()
        records = tracer.records()
        assert used(tracer) == 0
        assert tracer.problems() == []
    assert failures == []
    for storage in {record.args["x"].storage for record in records}:
        mine = [record for record in records if record.args["x"].storage == storage]
        assert [sides(record) for record in mine] == [
            ((float(step), None), (step + 1.0, None)) for step in range(12)
        ]


def test_bytes_are_not_kept_and_the_record_says_so(simulated, tmp_path):
    """save_tensors has no effect on values read at the launch, and that is stated."""
    x = ones(simulated)
    with at_launch(out=tmp_path / "t.ndjson", save_tensors=64) as tracer:
        double(x)
        arg = tracer.records()[0].args["x"]
    assert (arg.data, arg.data_after) == (None, None)
    assert "at_launch" in arg.data_reason


def test_a_forked_child_says_why_it_reads_nothing(simulated):
    """Whatever keeps a thread from reading keeps it from preparing, under its own name."""

    @attrs.frozen
    class Refused(SimulatedRuntime):
        def refusal(self):
            return "forked_child"

    simulated.simulation.driver.lazytrace_runtime = Refused(simulated.simulation)
    x = ones(simulated)
    with at_launch() as tracer:
        double(x)
        (record,) = tracer.records()
    assert (record.args["x"].state, record.args["x"].reason) == ("skipped", "forked_child")

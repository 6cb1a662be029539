"""Which launch is named for NaN and infinity, what is said of their origin, and what is ignored."""

from __future__ import annotations

import math

import kernels
import pytest
import torch
import triton
import triton.language as tl
from case_kernels import accumulate, captured
from trace_lines import tensor

import lazytrace
from lazytrace import Ignore, OptionError
from lazytrace._values.non_finite import non_finite
from lazytrace.config import make_options
from lazytrace.records import (
    ArgState,
    KernelInfo,
    Observation,
    Overwritten,
    Point,
    Reading,
    Role,
    ScalarArg,
    TensorStats,
)

NAN, INF = math.nan, math.inf


@triton.jit
def divide(x, y, out, n, BLOCK: tl.constexpr):
    """``out = x / y``."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    quotient = tl.load(x + offsets, mask=mask) / tl.load(y + offsets, mask=mask)
    tl.store(out + offsets, quotient, mask=mask)


def scale(x, factor=2.0):
    kernels.scale_[(1,)](x, x.numel(), factor, BLOCK=32)


def copy(x, out):
    kernels.copy[(1,)](x, out, out.numel(), BLOCK=32)


def filled(device, *values):
    return torch.tensor(values, device=device.torch_device)


def found(problems):
    return [(one.launch, one.argument, one.index) for one in problems if one.kind == "non_finite"]


def problems_of(device, body, **options):
    """The problems of a graph that was captured, replayed and read."""
    with lazytrace.trace(**options) as tracer:
        graph = captured(body)
        graph.replay()
        device.synchronize()
        problems = tracer.problems()
        del graph
    return problems


# Readings at the launch

KERNEL = KernelInfo("k", "hash", roles={"x": Role.READ, "io": Role.READ_WRITE, "out": Role.WRITE})
ARGS = {name: tensor() for name in ("x", "io", "out")} | {"n": ScalarArg("int", 1)}
GOOD = TensorStats(0.0, 1.0, 0.5, 0.5)
BAD = TensorStats(0.0, 1.0, 0.5, 0.5, nan_count=2, posinf_count=1, first_nonfinite_index=4)


def at_launch(before=None, after=None):
    """What an at_launch mode reads of one argument on the two sides of replay 3."""
    return Reading(
        ArgState.MATERIALIZED,
        values=before,
        observed=before and Observation(Point.AT_LAUNCH, 3, Overwritten.NO),
        values_after=after,
        observed_after=after and Observation(Point.AFTER_LAUNCH, 3, Overwritten.NO),
    )


def judged(kernel=KERNEL, args=ARGS, **options):
    readings = {"x": options.pop("x"), "io": options.pop("io"), "out": options.pop("out")}
    readings = {path: reading for path, reading in readings.items() if reading is not None}
    problems = non_finite(7, kernel, args, readings, graph=2, **options)
    return [(one.argument, one.side, one.origin) for one in problems]


def test_finite_inputs_and_a_bad_output_were_made_here():
    """Every input that the kernel may read was finite at the launch."""
    assert judged(x=at_launch(GOOD), io=at_launch(GOOD, GOOD), out=at_launch(None, BAD)) == [
        ("out", "output", "made_here")
    ]


def test_a_bad_input_came_in_and_so_did_what_it_made():
    """Both arguments are named, the input first."""
    assert judged(x=at_launch(BAD), io=at_launch(GOOD, GOOD), out=at_launch(None, BAD)) == [
        ("x", "input", "came_in"),
        ("out", "output", "came_in"),
    ]


def test_an_argument_that_is_bad_on_both_sides_is_named_once_as_an_input():
    """One problem for each argument."""
    assert judged(x=at_launch(GOOD), io=at_launch(BAD, BAD), out=at_launch(None, GOOD)) == [
        ("io", "input", "came_in")
    ]


def test_an_argument_updated_in_place_can_become_bad_here():
    """Finite before, not after, with every input finite."""
    assert judged(x=at_launch(GOOD), io=at_launch(GOOD, BAD), out=at_launch(None, GOOD)) == [
        ("io", "output", "made_here")
    ]


@pytest.mark.parametrize(
    "unread",
    [None, Reading(ArgState.SKIPPED, "no_slot"), at_launch(None, GOOD)],
    ids=["no reading", "skipped", "only after"],
)
def test_where_an_input_was_not_read_the_origin_is_unknown(unread):
    """Neither claim is made: the unread input may have been bad."""
    assert judged(x=unread, io=at_launch(GOOD, GOOD), out=at_launch(None, BAD)) == [
        ("out", "output", None)
    ]


def test_an_unread_input_does_not_hide_that_another_was_bad():
    """A bad input proves came_in, whatever the others were."""
    assert judged(x=None, io=at_launch(BAD, GOOD), out=at_launch(None, BAD)) == [
        ("io", "input", "came_in"),
        ("out", "output", "came_in"),
    ]


def test_an_empty_input_is_finite():
    """It brings nothing in."""
    empty = {**ARGS, "x": tensor(shape=(0, 3), numel=0, nbytes=0)}
    outcome = judged(args=empty, x=None, io=at_launch(GOOD, GOOD), out=at_launch(None, BAD))
    assert outcome == [("out", "output", "made_here")]


@pytest.mark.parametrize(
    "kernel",
    [
        KernelInfo("k", "hash", roles=KERNEL.roles, reads_unknown=True),
        KernelInfo("k", "hash"),
    ],
    ids=["loads addresses", "no roles"],
)
def test_a_kernel_that_may_read_elsewhere_never_made_it_for_certain(kernel):
    """Inputs that were not seen may have been bad."""
    good = at_launch(GOOD, GOOD)
    outcome = judged(kernel, x=good, io=good, out=at_launch(GOOD, BAD))
    assert outcome == [("out", "output", None)]


def test_what_an_output_held_before_the_launch_is_nobody_s_fault():
    """Memory that the kernel only writes may hold anything when it begins."""
    good = at_launch(GOOD, GOOD)
    assert judged(x=at_launch(GOOD), io=good, out=at_launch(BAD, GOOD)) == []
    assert judged(x=at_launch(GOOD), io=good, out=at_launch(BAD, BAD)) == [
        ("out", "output", "made_here")
    ]


def test_an_ignored_bad_input_leaves_the_origin_open():
    """Its padding may have leaked into the output, or not."""
    outcome = judged(
        x=at_launch(BAD),
        io=at_launch(GOOD, GOOD),
        out=at_launch(None, BAD),
        ignore=[Ignore(argument="x")],
    )
    assert outcome == [("out", "output", None)]


def test_a_problem_has_the_launch_the_replay_the_element_and_the_evidence():
    """In its fields, and in words."""
    readings = {"x": at_launch(GOOD), "io": at_launch(GOOD, GOOD), "out": at_launch(None, BAD)}
    (problem,) = non_finite(7, KERNEL, ARGS, readings, graph=2)
    assert (problem.kind, problem.kernel, problem.argument) == ("non_finite", "k", "out")
    assert (problem.launch, problem.graph, problem.replay) == (7, 2, 3)
    assert (problem.index, problem.evidence) == (4, "after_launch")
    assert problem.message == (
        "out of k (launch 7): 2 NaN, 1 inf, first at index 4 of shape [2, 3]; the launch left it "
        "so in replay 3, and every input was finite when the launch began"
    )


# Readings after the replay


def test_deferred_evidence_claims_no_origin(device):
    """The division's output is named with its side, its replay and its element, in both places."""
    x, y, out = (filled(device, *row) for row in ([1.0] * 4, [1.0, 1.0, 0.0, 1.0], [0.0] * 4))
    (problem,) = problems_of(device, lambda: divide[(1,)](x, y, out, 4, BLOCK=32))
    assert (problem.launch, problem.argument, problem.index) == (0, "out", 2)
    assert (problem.side, problem.origin) == ("output", None)
    assert (problem.replay, problem.evidence, problem.graph) == (1, "after_replay", 0)
    assert problem.message == (
        "out of divide (launch 0): 1 inf, first at index 2 of shape [4]; read after replay 1, so "
        "it is what the replay left there: something may have written it since the launch, and "
        "whether it was made here or came in is not known"
    )


def test_an_input_that_is_only_read_is_an_input(simulated):
    """Its role tells the side; that of an argument which is read and written does not."""
    x, out = filled(simulated, 1.0, NAN), filled(simulated, 0.0, 0.0)
    problems = problems_of(simulated, lambda: [copy(x, out), scale(out)])
    assert found(problems) == [(0, "x", 1), (1, "x", 1)]
    assert [one.side for one in problems] == ["input", None]


def test_problems_are_in_graph_order_and_the_file_has_the_same(simulated, tmp_path):
    """Launch by launch, argument by argument in the signature's order."""
    x, y, z = (filled(simulated, *row) for row in ([1.0, NAN], [INF, 1.0], [0.0, 0.0]))

    def body():
        scale(z)
        copy(y, z)
        kernels.axpy[(1,)](x, y, z, 2, 1.0, BLOCK=32)

    with lazytrace.trace(tmp_path / "t.ndjson") as tracer:
        graph = captured(body)
        graph.replay()
        torch.cuda.synchronize()
        problems = tracer.problems()
    expected = [(1, "x", 0), (2, "x", 1), (2, "y", 0), (2, "out", 0)]
    assert found(problems) == expected
    assert list(lazytrace.read(tracer.path).problems) == tracer.problems() == problems
    del graph


def test_a_value_that_was_overwritten_is_held_against_the_last_writer(simulated):
    """Launch 0 wrote the same buffer finitely for all that is known: only launch 2 is named."""
    x, y, out = (filled(simulated, *row) for row in ([1.0, 1.0], [0.0, 0.0], [0.0, 0.0]))

    def body():
        copy(x, out)
        scale(x)
        divide[(1,)](x, y, out, 2, BLOCK=32)

    assert found(problems_of(simulated, body)) == [(2, "out", 0)]


def test_the_element_decides_who_wrote_it(simulated):
    """Launch 1 writes the buffer's finite end; the NaN at its beginning is launch 0's."""
    x, buffer = filled(simulated, NAN, 1.0, 1.0, 1.0), filled(simulated, 0.0, 0.0, 0.0, 0.0)
    problems = problems_of(simulated, lambda: [copy(x, buffer), scale(buffer[2:])])
    assert found(problems) == [(0, "x", 0), (0, "out", 0)]
    with_reader = problems_of(
        simulated, lambda: [copy(buffer, x), copy(x, buffer), scale(buffer[2:])]
    )
    assert found(with_reader) == [(0, "out", 0), (1, "x", 0), (1, "out", 0)]


def test_an_interleaved_writer_that_is_not_bad_itself_hides_nothing(simulated):
    """Column 1 lies within column 0's span: column 0 is reported, with the doubt in words."""
    matrix = torch.zeros(3, 2)
    matrix[:, 0] = NAN

    @triton.jit
    def touch(x):
        tl.store(x, tl.load(x))

    problems = problems_of(
        simulated, lambda: [touch[(1,)](matrix[:, 0]), touch[(1,)](matrix[:, 1])]
    )
    assert found(problems) == [(0, "x", 0)]


def test_a_reader_before_the_writer_is_not_held_responsible(simulated):
    """What launch 0 read was written anew by launch 1: its value is not known."""
    x, y, out = (filled(simulated, *row) for row in ([1.0, 1.0], [0.0, 0.0], [0.0, 0.0]))

    def body():
        accumulate[(1,)](out, x, 2, BLOCK=32)
        divide[(1,)](x, y, out, 2, BLOCK=32)
        copy(out, x)

    # Launch 2 writes infinity to x, which launches 0 and 1 have found finite, or may have.
    assert found(problems_of(simulated, body)) == [(1, "out", 0), (2, "x", 0), (2, "out", 0)]


def test_of_a_folded_run_the_last_launch_is_named(simulated):
    """x doubles past the largest float: each launch overwrites what the one before has left."""
    x = filled(simulated, 1e38, 1.0)
    assert found(problems_of(simulated, lambda: [scale(x) for _ in range(4)])) == [(3, "x", 0)]


def test_launches_with_the_same_arguments_are_named_once(simulated):
    """Ten readers of one bad input, between other launches: the first one is named."""
    x, other, out = (filled(simulated, *row) for row in ([NAN, 1.0], [1.0, 1.0], [0.0, 0.0]))

    def body():
        for _ in range(10):
            divide[(1,)](other, x, out, 2, BLOCK=32)
            scale(other)

    assert found(problems_of(simulated, body)) == [(0, "y", 0), (18, "out", 0)]


def test_complex_values_are_judged_by_either_part(simulated):
    """An infinite imaginary part at the element with index 2."""
    x = torch.tensor([1 + 1j, 2 + 0j, complex(0, INF)])
    with lazytrace.trace() as tracer:
        kernels.copy[(1,)](torch.view_as_real(x), torch.zeros(6), 6, BLOCK=32)
        torch.cuda.synchronize()
        real = tracer.problems()
    assert found(real) == [(0, "x", 5)]
    stats = TensorStats(
        posinf_count=1,
        first_nonfinite_index=2,
        real=TensorStats(0.0, 2.0),
        imag=TensorStats(0.0, 1.0, posinf_count=1, first_nonfinite_index=2),
    )
    (problem,) = non_finite(0, KERNEL, ARGS, {"x": at_launch(stats)})
    assert problem.index == 2


def test_integers_are_always_finite(simulated):
    """The largest integer is none of the infinities."""
    x, out = torch.full((4,), 2**31 - 1, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    assert problems_of(simulated, lambda: copy(x, out)) == []


def test_a_later_replay_does_not_report_a_launch_twice(simulated):
    """The first reading that showed it stays."""
    x, out = filled(simulated, NAN, 1.0), filled(simulated, 0.0, 0.0)
    with lazytrace.trace() as tracer:
        graph = captured(lambda: copy(x, out))
        for _ in range(3):
            graph.replay()
            tracer.flush(wait=True, again=True)
        problems = tracer.problems()
    assert found(problems) == [(0, "x", 0), (0, "out", 0)]
    assert {one.replay for one in problems} == {1}


def test_an_eager_launch_is_named_too(device):
    """Without a graph and a replay; the value was read at the synchronisation."""
    x, y, out = (filled(device, *row) for row in ([0.0, 1.0], [0.0, 1.0], [1.0, 1.0]))
    with lazytrace.trace() as tracer:
        scale(x)
        divide[(1,)](x, y, out, 2, BLOCK=32)
        device.synchronize()
        (problem,) = tracer.problems()
    assert (problem.launch, problem.argument, problem.index) == (1, "out", 0)
    assert (problem.graph, problem.replay, problem.origin) == (None, None, None)
    assert problem.evidence == "on_request"
    assert (
        "1 NaN, first at index 0 of shape [2]; read after the launch: something" in problem.message
    )


def test_problems_of_a_kind_are_bounded(simulated):
    """The first 1,000 are kept, the rest is counted."""
    bad, out = torch.full((1100, 1), NAN), torch.zeros(1)
    with lazytrace.trace(eager_samples=None) as tracer:
        for row in bad:
            scale(row)
        copy(out, out)
        torch.cuda.synchronize()
        problems = tracer.problems()
    assert len(found(problems)) == 1000
    assert problems[-1].kind == "dropped"
    assert problems[-1].message == "100 dropped: max_problems: non_finite"


def test_a_warning_is_given_where_that_was_asked_for(simulated):
    """Once for each problem."""
    x, out = filled(simulated, NAN, 1.0), filled(simulated, 0.0, 0.0)
    with lazytrace.trace(on_problem="warn", values="deferred") as tracer:
        copy(out, x[1:])
        scale(x[:1])
        with pytest.warns(UserWarning, match="non_finite: x of scale_") as caught:
            torch.cuda.synchronize()
        assert len(caught) == 1
        assert found(tracer.problems()) == [(1, "x", 0)]


# What is ignored


def padded(device):
    """Four rows of three, of which the last two are padding that was never written."""
    x = torch.ones(4, 3, device=device.torch_device)
    x[2:] = NAN
    return x, torch.zeros(4, 3, device=device.torch_device)


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        (Ignore(), []),
        (Ignore("copy", "x"), [(0, "out", 6)]),
        (Ignore("c*", "*", rows_from=2), []),
        (Ignore("c*", "*", rows_from=3), [(0, "x", 6), (0, "out", 6)]),
        (Ignore(argument="out", rows_from=1), [(0, "x", 6)]),
        (Ignore("COPY"), [(0, "x", 6), (0, "out", 6)]),
        (Ignore(rows_from="alpha"), [(0, "x", 6), (0, "out", 6)]),
    ],
    ids=["all", "argument", "rows", "too late", "one side", "case", "no such scalar"],
)
def test_padding_is_ignored_by_rule(simulated, rule, left):
    """C23: the real rows are finite, and the rule says where the padding begins."""
    x, out = padded(simulated)
    assert found(problems_of(simulated, lambda: copy(x, out), ignore=[rule])) == left


def test_the_name_of_a_scalar_gives_the_first_padding_row(device):
    """Each launch is measured by its own number of rows."""
    x, out = padded(device)

    @triton.jit
    def rows_of(x, out, rows):
        tl.store(out, tl.load(x))

    rule = Ignore(kernel="rows_of", argument="x", rows_from="rows")
    problems = problems_of(
        device, lambda: [rows_of[(1,)](x, out, 2), rows_of[(1,)](x, out, 3)], ignore=[rule]
    )
    assert found(problems) == [(1, "x", 6)]


def test_a_bad_real_row_is_reported_though_the_padding_is_bad_too(simulated):
    """Where the first one sits decides."""
    x, out = padded(simulated)
    x[1, 2] = INF
    problems = problems_of(simulated, lambda: copy(x, out), ignore=Ignore(rows_from=2))
    assert found(problems) == [(0, "x", 5), (0, "out", 5)]


def test_a_path_with_brackets_is_meant_as_it_is():
    """fnmatch alone would take them for a set of characters."""
    assert Ignore("k", "ts[0]").names("k", "ts[0]")
    assert not Ignore("k", "ts[0]").names("k", "ts[1]")
    assert Ignore("k", "ts*").names("k", "ts[1]")


def test_rules_are_an_option_like_others(simulated, tmp_path):
    """Equal rules are equal options, in any spelling; the session line has them."""
    rule = Ignore("k*", "x", rows_from="n")
    out = tmp_path / "t.ndjson"
    tracer = lazytrace.enable(out, ignore=[rule])
    assert lazytrace.enable(out, ignore=Ignore("k*", "x", "n")) is tracer
    with pytest.raises(lazytrace.AlreadyEnabledError):
        lazytrace.enable()
    lazytrace.disable()
    (kept,) = lazytrace.read(out).session.options["ignore"]
    assert kept == {"kernel": "k*", "argument": "x", "rows_from": "n"}
    assert make_options(None, {"ignore": None}).ignore == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: make_options(None, {"ignore": "x"}), r"ignore='x': expected a list"),
        (lambda: make_options(None, {"ignore": [Ignore(), "x"]}), r"lazytrace\.Ignore"),
        (lambda: make_options(None, {"ignore": 3}), "ignore=3"),
        (lambda: Ignore(kernel=3), "ignore: kernel=3: expected an fnmatch pattern"),
        (lambda: Ignore(argument=""), "ignore: argument=''"),
        (lambda: Ignore(rows_from=-1), "ignore: rows_from=-1: expected a row from 0 on"),
        (lambda: Ignore(rows_from=True), "rows_from=True"),
        (lambda: Ignore(rows_from=1.5), "rows_from=1.5"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(given, message):
    """OptionError names what is wrong."""
    with pytest.raises(OptionError, match=message):
        given()


# Coverage


def test_coverage_says_how_much_was_looked_at(simulated):
    """Replays read of replays run, and arguments by what became of them; the file agrees."""
    x, out = filled(simulated, 1.0, 1.0), filled(simulated, 0.0, 0.0)
    tracer = lazytrace.enable(eager_samples=1)
    for factor in (2.0, 3.0, 4.0):
        scale(x, factor)
    graph = captured(lambda: copy(x, out))
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    coverage = lazytrace.coverage()
    assert coverage == tracer.coverage()
    assert (coverage.replays_read, coverage.replays_run) == (1, 5)
    assert (coverage.materialized, coverage.skipped, coverage.pending) == (3, 2, 0)
    assert coverage.dropped == {}
    lazytrace.disable()
    assert lazytrace.coverage() == coverage


def test_coverage_counts_what_was_dropped(simulated):
    """The launches that max_records has evicted."""
    x = filled(simulated, 1.0)
    with lazytrace.trace(max_records=2) as tracer:
        for factor in (2.0, 3.0, 4.0):
            scale(x, factor)
        assert tracer.coverage().dropped == {"max_records": 1}


def test_coverage_before_any_enable_is_an_error():
    """As for every function that asks a tracer."""
    with pytest.raises(lazytrace.NotEnabledError):
        lazytrace.coverage()

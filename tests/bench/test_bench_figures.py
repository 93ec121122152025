"""Figures are made of samples as the documents say."""
import pytest

from benchmarks.cases import GIB, all_cases, quick_cases, select
from benchmarks.measure import absolute, client_share, figure, others_cpus, ratio, value
from benchmarks.sides import SIDES, parse_side, why_missing, why_unsuited
from benchmarks.targets import TARGETS, Target

CASES = {case.id: case for case in all_cases()}
ECHO = CASES["echo/protocol/1024/c16"]
BULK = CASES["bulk-in/buffered"]
IDLE = CASES["idle/protocol/5000"]


def sample(units, seconds=2.0, cpu_us=1000.0, **more):
    return {
        "mode": "echo", "units": units, "seconds": seconds, "client_cpu_us": 500_000.0,
        "server": {"cpu_us": cpu_us}, "latency_us": {"p50": 3.0, "p99": 9.0}, **more,
    }


def test_values_of_one_sample():
    one = sample(4000)
    assert value(ECHO, one, "rate") == 2000
    assert value(ECHO, one, "cpu") == 0.25
    assert (value(ECHO, one, "p50"), value(ECHO, one, "p99")) == (3.0, 9.0)
    assert value(ECHO, one, "memory") is None


def test_bulk_is_counted_in_gib():
    one = sample(3 * GIB, cpu_us=600_000.0)
    assert value(BULK, one, "rate") == 1.5
    assert value(BULK, one, "cpu") == pytest.approx(200_000)


def test_idle_has_memory_and_no_rate():
    one = {
        "mode": "idle", "units": 5000, "seconds": 0.5, "connections": 5000,
        "server": {"rss_start": 1_000_000, "rss_end": 11_000_000, "cpu_us": 40.0},
    }
    assert value(IDLE, one, "memory") == 2000
    assert value(IDLE, one, "idle") == 80
    assert value(IDLE, one, "rate") is None


def test_a_failed_sample_has_no_value():
    assert value(ECHO, {"error": "gone"}, "rate") is None
    assert absolute(ECHO, [{"error": "gone"}], "rate") is None
    assert client_share([{"error": "gone"}]) is None


def test_spread_is_quartiles_and_extremes_when_few():
    few = figure([3.0, 1.0, 2.0])
    assert (few.median, few.low, few.high, few.count) == (2.0, 1.0, 3.0, 3)
    many = figure([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (many.median, many.low, many.high, many.count) == (3.0, 2.0, 4.0, 5)


def test_ratios_are_taken_inside_a_round():
    # The machine gets ten times slower after the first round: the ratio doesn't move.
    base = [sample(1000), sample(100), sample(100)]
    ours = [sample(2000), sample(200), sample(200)]
    found = ratio(ECHO, ours, base, "rate")
    assert (found.median, found.low, found.high) == (2.0, 2.0, 2.0)


def test_a_failed_sample_takes_its_round_out_of_the_ratio():
    base = [sample(100), {"error": "gone"}, sample(100)]
    ours = [sample(200), sample(900), {"error": "gone"}]
    found = ratio(ECHO, ours, base, "rate")
    assert (found.median, found.count) == (2.0, 1)


def test_client_share():
    assert client_share([sample(1), sample(1, seconds=1.0), sample(1, seconds=0.5)]) == 0.5


def test_what_other_programs_used():
    ours = {"machine_us": 2_501_000.0, "cpu_us": 1000.0}
    one = sample(1, seconds=1.0, machine_us=ours["machine_us"], cpu_us=ours["cpu_us"])
    assert others_cpus([one]) == pytest.approx(2.0)
    assert others_cpus([{"error": "gone"}]) is None


def test_case_ids_are_unique_and_sides_known():
    assert len(CASES) == len(all_cases())
    assert {side for case in CASES.values() for side in case.sides} == set(SIDES)
    assert {case.id for case in quick_cases()} <= set(CASES)


def test_no_case_asks_a_side_for_what_it_cannot_do():
    for case in CASES.values():
        for name in case.sides:
            assert why_unsuited(SIDES[name], case.kind) is None, (case.id, name)
    assert "only echoes" in why_unsuited(SIDES["c-epoll"], "sink-buffered")


def test_every_target_is_measured():
    for target in TARGETS:
        assert target.side in CASES[target.case].sides, target
    assert len({(t.case, t.side, t.metric) for t in TARGETS}) == len(TARGETS)


@pytest.mark.parametrize(
    ("relation", "ratio", "missed"),
    [(">=", 1.2, 0.0), (">=", 1.5, 0.0), (">=", 0.9, 0.25), ("<=", 1.2, 0.0), ("<=", 1.5, 0.25)],
)
def test_a_target_is_met_or_missed_by_a_share(relation, ratio, missed):
    target = Target("echo/protocol/1024/c16", "rate", relation, 1.2)
    assert target.met(ratio) == (missed == 0.0)
    assert target.missed_by(ratio) == pytest.approx(missed)


@pytest.mark.parametrize(
    ("pattern", "ids"),
    [
        ("echo/protocol/1024/c16", {"echo/protocol/1024/c16"}),
        ("idle", {"idle/protocol/5000", "idle/streams/5000"}),
        ("*/slow", {"echo/protocol/1024/c1/slow"}),
        ("nothing", set()),
    ],
)
def test_selection_by_id_beginning_or_pattern(pattern, ids):
    assert {case.id for case in select(all_cases(), [pattern])} == ids


def test_a_side_with_variables_of_its_own():
    side = parse_side("zcloop:nopoll+ZCLOOP_RECEIVE=copy+A=b=c")
    assert side.env == {"ZCLOOP_BUSY_POLL": "off", "ZCLOOP_RECEIVE": "copy", "A": "b=c"}
    assert side.name == "zcloop:nopoll+ZCLOOP_RECEIVE=copy+A=b=c"
    for wrong in ("nowhere", "uvloop+A"):
        with pytest.raises(ValueError, match=r"unknown side|is not KEY=VALUE"):
            parse_side(wrong)


def test_a_side_that_is_not_there_has_a_reason(tmp_path):
    root = str(__import__("benchmarks").__path__[0] + "/..")
    missing = parse_side("asyncio").__class__("nowhere", "no_such_module:new_event_loop")
    assert "No module named 'no_such_module'" in why_missing(missing, root)
    assert why_missing(SIDES["asyncio"], root) is None

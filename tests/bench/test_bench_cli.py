"""The command line: what it prints, keeps and refuses."""
import json
import subprocess
import sys

import pytest

pytest.importorskip("rich", reason="the tables need rich, of the extra 'bench'")

from benchmarks import cli, report, results, session
from benchmarks.cases import all_cases
from benchmarks.runner import Result
from benchmarks.targets import TARGETS

CASES = {case.id: case for case in all_cases()}
FAST = ["--rounds", "1", "--seconds", "0.05", "--warmup", "0.01"]


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """Where raw data goes in these tests."""
    folder = tmp_path / "results"
    monkeypatch.setattr(results, "RESULTS", folder)
    return folder


def sample(rate, cpu, p99=9.0):
    return {
        "mode": "echo", "units": rate, "seconds": 1.0, "client_cpu_us": 1.0, "connections": 1,
        "machine_us": cpu * rate,
        "server": {"cpu_us": cpu * rate}, "latency_us": {"p50": 3.0, "p99": p99},
    }


def test_a_run_prints_a_table_and_keeps_raw_data(kept, tmp_path, capsys):
    copy = tmp_path / "copy.json"
    arguments = ["--only", "echo/protocol/64/c1", "--sides", "uvloop,asyncio", *FAST]
    assert cli.main([*arguments, "--json", str(copy), "--markdown", str(tmp_path / "x.md")]) == 0
    shown = capsys.readouterr().out
    assert "echo/protocol/64/c1" in shown
    assert "\x1b" not in shown
    (stored,) = kept.glob("*.json")
    document = json.loads(stored.read_text())
    assert document == json.loads(copy.read_text())
    assert document["environment"].keys() >= {
        "date", "kernel", "cpu", "governor", "python", "libraries", "env", "allocator_control",
    }
    samples = document["cases"][0]["samples"]
    assert {name: len(list_) for name, list_ in samples.items()} == {"uvloop": 1, "asyncio": 1}
    assert (tmp_path / "x.md").read_text().count("| echo/protocol/64/c1 |") == 2
    assert cli.main(["--show", str(copy)]) == 0
    again = capsys.readouterr().out
    lines = shown.splitlines()
    rows = [line for line in lines if line.lstrip().startswith(("uvloop  ", "asyncio  "))]
    assert len(rows) == 2
    assert all(row in again for row in rows)


def test_cases_come_back_from_disk_as_they_were(tmp_path):
    path = tmp_path / "x.json"
    before = [Result(case, {}) for case in CASES.values()]
    results.save(path, {}, before, {})
    assert results.load(path)[1] == before


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--only", "nothing"], "no case matches"),
        (["--only", "idle", "--sides", "nowhere"], "unknown side 'nowhere'"),
        (["--only", "idle", "--sides", "uvloop+X"], "is not KEY=VALUE"),
    ],
)
def test_refusals(arguments, complaint, capsys):
    assert cli.main(arguments) == 2
    assert complaint in capsys.readouterr().err


def test_a_side_that_cannot_run_is_named(monkeypatch, capsys):
    monkeypatch.setattr(
        session, "why_missing", lambda side, root: "no such thing" if side.name == "rloop" else None
    )
    arguments = ["--only", "streams/read/64k", "--sides", "asyncio,rloop,c-epoll", *FAST]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "rloop is not here: no such thing" in shown
    assert "rloop: not here (see the top)" in shown
    assert "c-epoll: the C server only echoes" in shown


def test_list_prints_the_whole_matrix(capsys):
    assert cli.main(["--list"]) == 0
    assert capsys.readouterr().out.split() == list(CASES)


def test_failures_and_a_busy_client_are_told():
    case = CASES["echo/protocol/1024/c16"]
    busy = sample(100, 1.0) | {"client_cpu_us": 990_000.0, "machine_us": 1_500_000.0}
    result = Result(case, {"uvloop": [busy], "zcloop": [{"error": "gone"}]})
    told = report.notes(result, {"rloop": "why not"})
    assert told == [
        "rloop: why not",
        "uvloop: the load generator used 99% of a CPU and limits the rate",
        "uvloop: other programs used 0.5 CPUs meanwhile",
        "zcloop: 1 of 1 samples failed: gone",
    ]


def verdicts(result, capsys):
    table, failed = report.gate_table([result])
    report.console().print(table)
    lines = capsys.readouterr().out.splitlines()
    return {
        tuple(line.split()[1:3]): line for line in lines if line.split()[:1] == [result.case.id]
    }, failed


def test_gate_judges_each_target(capsys):
    case = CASES["echo/protocol/1024/c16"]
    result = Result(case, {
        "uvloop": [sample(1000, 1.0)] * 5,
        "zcloop": [sample(1100, 1.2)] * 5,
    })
    found, failed = verdicts(result, capsys)
    assert " met" in found["zcloop", "rate"]
    assert "missed by 20.0%" in found["zcloop", "cpu"]
    assert failed == len(TARGETS) - 1


def test_gate_tells_when_the_spread_covers_a_miss(capsys):
    case = CASES["echo/protocol/1024/c16"]
    ours = [sample(rate, 1.0) for rate in (900, 950, 990, 1010, 1020)]
    result = Result(case, {"uvloop": [sample(1000, 1.0)] * 5, "zcloop": ours})
    found, _ = verdicts(result, capsys)
    assert "missed by 1.0%, within the spread" in found["zcloop", "rate"]


@pytest.mark.parametrize(("strict", "status"), [([], 0), (["--strict"], 1)])
def test_only_strict_makes_a_missed_target_a_failure(strict, status, tmp_path, capsys):
    path = tmp_path / "x.json"
    from benchmarks import environment
    stamp = environment.describe() | {"rounds": 1, "seconds": 1.0, "cpus_used": None}
    results.save(path, stamp, [], {})
    assert cli.main(["--show", str(path), "--gate", *strict]) == status
    assert "not measured" in capsys.readouterr().out


NUMBERS = [("--rounds", "0"), ("--rounds", "-1"), ("--seconds", "0"), ("--seconds", "nan")]


@pytest.mark.parametrize(
    ("module", "option", "number"),
    [(module, *number) for module in ("", ".aiohttp", ".zerocopy_send") for number in NUMBERS]
    + [(".receive", *number) for number in NUMBERS[:2]])    # its --seconds may be none
def test_numbers_that_make_no_sense_are_refused(module, option, number):
    done = subprocess.run([sys.executable, "-m", f"benchmarks{module}", f"{option}={number}"],
                          capture_output=True, text=True)
    assert done.returncode == 2
    assert f"argument {option}" in done.stderr
    assert number in done.stderr

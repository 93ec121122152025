"""One real sample of every kind of case, and what becomes of servers that fail."""
import os
from dataclasses import replace

import pytest

from benchmarks import runner, zerocopy_send
from benchmarks.cases import MIB, all_cases, with_malloc
from benchmarks.measure import METRICS, value
from benchmarks.sample import Setting, server_command, take
from benchmarks.servers.main import KINDS
from benchmarks.servers.pattern import pattern
from benchmarks.sides import SIDES, Side

SETTING = Setting(seconds=0.05, warmup=0.01, cpus=None)
CASES = {case.id: case for case in [*all_cases(), *zerocopy_send.CASES]}
ECHO = CASES["echo/protocol/64/c1"]
SMALL_FILE = 8 * MIB


def small(case):
    """The same case with little work: it is the harness that is tested."""
    load = list(case.load)
    amounts = {"--connections": 3} | ({"--transfer": SMALL_FILE} if case.file_bytes else {})
    for option, amount in amounts.items():
        if option in load:
            load[load.index(option) + 1] = str(amount)
    return replace(case, load=tuple(load))


@pytest.fixture
def data_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(pattern(MIB) * (SMALL_FILE // MIB))
    return path


ONE_OF_EACH = list({(case.kind, case.load[0]): case for case in CASES.values()}.values())


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=lambda case: case.id)
def test_one_sample(case, data_file):
    record = take(small(case), SIDES["asyncio"], SETTING, data_file)
    assert "error" not in record
    assert record.get("stderr", "") == ""
    assert record["server_exit"].keys() >= {"user_s", "system_s", "max_rss_bytes"}
    known = {metric for metric in METRICS if value(case, record, metric) is not None}
    assert known >= ({"memory", "idle"} if case.load[0] == "idle" else {"rate", "cpu"})


def test_every_kind_of_server_has_a_case():
    assert {case.kind for case in ONE_OF_EACH} == set(KINDS)


def test_a_file_is_sent_where_the_loop_has_no_sendfile(data_file):
    record = take(small(CASES["sendfile/1g"]), SIDES["uvloop"], SETTING, data_file)
    assert record["units"] == SMALL_FILE


def test_the_bare_c_server():
    record = take(CASES["echo/protocol/1024/c16"], SIDES["c-epoll"], SETTING)
    assert record["verified"] > 0
    assert record["loop"] == "C"


def test_cpu_is_that_of_the_measured_phase():
    record = take(ECHO, SIDES["asyncio"], SETTING)
    server, whole = record["server"], record["server_exit"]
    assert 0 < server["cpu_us"] / 1e6 < whole["user_s"] + whole["system_s"]
    assert server["voluntary"] + server["involuntary"] >= 0


def test_a_server_that_cannot_start_is_a_failed_sample():
    record = take(ECHO, Side("nowhere", "no_such_module:new_event_loop"), SETTING)
    assert record["error"].startswith("the server did not start")
    assert "no_such_module" in record["error"]
    assert value(ECHO, record, "rate") is None


def test_a_server_that_dies_is_a_failed_sample(tmp_path, monkeypatch):
    """The loop of this side ends its process soon after it has begun to serve."""
    (tmp_path / "mortal.py").write_text(
        "import asyncio, os\n"
        "def new_event_loop():\n"
        "    loop = asyncio.new_event_loop()\n"
        "    loop.call_later(0.2, os._exit, 3)\n"
        "    return loop\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    setting = replace(SETTING, seconds=30.0)
    record = take(ECHO, Side("mortal", "mortal:new_event_loop"), setting)
    assert "error" in record
    assert record["server_exit"]["stop"] == "exit status 3"


def test_a_sample_that_overran_is_a_failed_one(monkeypatch):
    def stopped(command, limit, cpu):
        return {"mode": "echo", "units": 5, "seconds": SETTING.seconds + 3.0}
    monkeypatch.setattr("benchmarks.sample._load", stopped)
    record = take(ECHO, SIDES["asyncio"], SETTING)
    assert record["error"] == "the measured phase took 3.0 s longer than it should"


def test_the_allocator_control_reaches_the_server(tmp_path, monkeypatch):
    (tmp_path / "telling.py").write_text(
        "import asyncio, os, sys\n"
        "def new_event_loop():\n"
        "    print(os.environ.get('MALLOC_TRIM_THRESHOLD_'), os.environ['OWN'], file=sys.stderr)\n"
        "    return asyncio.new_event_loop()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    side = Side("telling", "telling:new_event_loop", {"OWN": "7"})
    assert take(ECHO, side, SETTING)["stderr"] == "None 7"
    assert take(with_malloc(ECHO), side, SETTING)["stderr"] == "268435456 7"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="pinning needs two CPUs")
def test_pinning_leaves_this_process_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "pinned.py").write_text(
        "import asyncio, os, sys\n"
        "def new_event_loop():\n"
        "    print(os.sched_getaffinity(0), file=sys.stderr)\n"
        "    return asyncio.new_event_loop()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    before = os.sched_getaffinity(0)
    first, second = sorted(before)[:2]
    side = Side("pinned", "pinned:new_event_loop")
    setting = replace(SETTING, cpus=(second, first))
    assert take(ECHO, side, setting)["stderr"] == f"{{{second}}}"
    assert take(replace(ECHO, pinned=False), side, setting)["stderr"] == str(before)
    assert os.sched_getaffinity(0) == before


def test_rounds_interleave_and_rotate(monkeypatch):
    order = []

    def fake(case, side, setting, file):
        order.append(side.name)
        return {"units": len(order)}
    monkeypatch.setattr(runner, "take", fake)
    sides = [SIDES[name] for name in ("asyncio", "uvloop", "zcloop")]
    result = runner.run_case(ECHO, sides, 3, SETTING, lambda *_: None)
    assert order == ["asyncio", "uvloop", "zcloop", "uvloop", "zcloop", "asyncio",
                     "zcloop", "asyncio", "uvloop"]
    assert {name: len(samples) for name, samples in result.samples.items()} == {
        "asyncio": 3, "uvloop": 3, "zcloop": 3}


def test_the_server_code_is_the_same_for_all_loops():
    commands = {
        name: server_command(ECHO, side) for name, side in SIDES.items() if side.factory
    }
    without_loop = set()
    for name, command in commands.items():
        at = command.index("--loop")
        assert command[at + 1] == SIDES[name].factory
        without_loop.add((*command[:at], *command[at + 2:]))
    assert len(without_loop) == 1

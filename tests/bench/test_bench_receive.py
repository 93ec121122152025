"""`benchmarks.receive`: samples are real and checked, figures are what the documents say, and the
command line keeps and shows what it measured."""
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from random import Random

import pytest

pytest.importorskip("rich", reason="the tables need rich, of the extra 'bench'")

import zcloop
from benchmarks import build, results
from benchmarks.receive import cli, figures, netns, report, sample, store
from benchmarks.receive.cells import TABLES, Cell, Side, all_cells, quick_cells, select
from benchmarks.receive.netns import LOOPBACK, NamespaceError, veth
from benchmarks.receive.receiver import PROTOCOLS, STREAMS, load_hash
from benchmarks.receive.run import Result, run
from benchmarks.receive.sample import Setting, take

MIB = 1 << 20
SETTING = Setting(cpus=None)
CELLS = {cell.id: cell for cell in all_cells()}
CAN_MAP = bool(zcloop.capabilities()["tcp_zerocopy_map"])


def small(cell, nbytes=4 * MIB):
    return replace(cell, nbytes=nbytes, warmup=0)


MAPPABLE = small(CELLS["mapping/loopback/splice/256k"])


# -- samples ------------------------------------------------------------------


@pytest.mark.parametrize("kind", PROTOCOLS + STREAMS)
def test_every_kind_of_receiver(kind):
    """`take` compares bytes and hash with what was sent."""
    side = Side("zcloop", "zcloop:new_event_loop", kind, (("ZCLOOP_RECEIVE", "map"),))
    record = take(MAPPABLE, side, SETTING, LOOPBACK)
    assert "error" not in record
    assert "stderr" not in record
    assert record["bytes"] == 4 * MIB
    assert record["sender"]["hash"] == record["hash"]
    maps = CAN_MAP and not kind.startswith(("reused", "fresh", "streams"))
    assert (record["mapped"] > 0) == maps


@pytest.mark.parametrize(
    "kind", ["reused", "reused-aligned", "fresh", "fresh-shifted", "streams", "streams-keep"]
)
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_other_loops(loop, kind):
    side = Side(loop, f"{loop}:new_event_loop", kind, lowat=5000)
    record = take(MAPPABLE, side, SETTING, LOOPBACK)
    assert "error" not in record
    assert record["mapped"] == 0


@pytest.mark.parametrize("kind", ["reused", "fresh", "map", "map-keep"])
def test_the_c_program(kind):
    if kind.startswith("map") and not CAN_MAP:
        pytest.skip("this kernel maps no pages of a loopback connection")
    record = take(MAPPABLE, Side("C", "", kind), SETTING, LOOPBACK)
    assert "error" not in record
    assert (record["mapped"] > 0) == kind.startswith("map")


def test_a_receiver_that_cannot_start_is_a_failed_sample():
    record = take(MAPPABLE, Side("x", "no_such_module:f", "reused"), SETTING, LOOPBACK)
    assert record["error"].startswith("the receiver did not start")
    assert "no_such_module" in record["error"]


def test_wrong_bytes_are_a_failed_sample(monkeypatch):
    monkeypatch.setattr(sample, "expected", lambda *_: "0" * 16)
    record = take(MAPPABLE, Side("uvloop", "uvloop:new_event_loop", "reused"), SETTING, LOOPBACK)
    assert record["error"] == "the bytes that came are not those that were sent"


def test_the_hash_does_not_hang_on_how_the_stream_was_cut():
    module = load_hash(str(build.reference_hash()))
    random = Random(7)
    data = random.randbytes(100_000)

    def hashed(cuts):
        state = module.Taker(True, 1 << 62, None)
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            state.take(data[start:end])
        return state.value()

    whole = hashed([])
    for count in (1, 2, 7, 100, 5000):
        cuts = sorted(random.randrange(len(data)) for _ in range(count))
        assert hashed(cuts) == whole
    data = data[64:] + data[:64]
    assert hashed([]) != whole


# -- namespaces ---------------------------------------------------------------


def namespaces():
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return set(re.findall(r"^\S+", done.stdout, re.MULTILINE))


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None,
    reason="network namespaces need root and iproute2",
)
def test_a_sample_between_two_namespaces():
    try:
        with veth(1500) as route:
            ours = {name for name in namespaces() if name.startswith(f"zcref{os.getpid()}")}
            record = take(MAPPABLE, Side("C", "", "reused"), SETTING, route)
    except NamespaceError as error:
        pytest.skip(f"this system forbids it: {error}")
    assert len(ours) == 2
    assert "error" not in record
    assert not ours & namespaces()


def test_a_cell_without_its_namespaces_says_why(monkeypatch):
    monkeypatch.setattr(netns.os, "geteuid", lambda: 1000)
    found = []
    cell = CELLS["mapping/veth-9000/splice/1m"]
    run([cell], 1, SETTING, lambda *_: None, found.append)
    (result,) = found
    assert result.missing == "network namespaces need root"
    assert report.notes(found) == [f"{cell.id}: not measured: network namespaces need root"]


# -- system calls -------------------------------------------------------------

SUMMARY = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.000600           1       600           getsockopt
 40.00    0.000400           1       300        12 recvfrom
------ ----------- ----------- --------- --------- ----------------
100.00    0.001000           1       900        12 total
"""


def test_reading_the_summary_of_strace():
    assert sample._counts(SUMMARY) == {"getsockopt": 600, "recvfrom": 300}


def test_calls_are_the_difference_between_two_runs(monkeypatch):
    counts = iter([{"read": 700, "execve": 1}, {"read": 2700, "execve": 1, "mmap": 3}])
    monkeypatch.setattr(sample, "_counts", lambda text: next(counts))
    monkeypatch.setattr(sample, "take", lambda *_: {"bytes": 1})
    cell = Cell("rpc/x", "plain", 1000, (), nbytes=1_000_000)
    record = sample.calls_per_message(cell, Side("x", "", "reused"), SETTING, LOOPBACK)
    assert record == {"bytes": 1, "calls": {"read": 2.0}}


def may_trace():
    probe = ["strace", "-c", "-o", os.devnull, "true"]
    return shutil.which("strace") and subprocess.run(probe, capture_output=True).returncode == 0


@pytest.mark.skipif(not may_trace(), reason="needs strace, and the right to trace")
def test_counting_the_calls_of_the_c_program():
    cell = CELLS["rpc/32k"]
    cell = replace(cell, sender="plain", nbytes=(cell.size + cell.header) * 100)
    record = sample.calls_per_message(cell, Side("C", "", "reused"), SETTING, LOOPBACK)
    assert record["calls"]["sendto"] == 1.0
    assert record["calls"]["recvfrom"] >= 1.0


# -- figures ------------------------------------------------------------------


def made(cpu_us=1000.0, seconds=1.0, share=0.5, voluntary=10, **more):
    return {
        "cpu_us": cpu_us, "release_us": 0.0, "measured_bytes": 1_000_000, "seconds": seconds,
        "mapped_share": share, "voluntary": voluntary, "others_cpus": 0.0, **more,
    }


def result_of(cell_id, **sides):
    names = {name.replace("_", " "): samples for name, samples in sides.items()}
    return Result(CELLS[cell_id], names)


def test_cpu_has_the_letting_go_in_it():
    assert figures.cpu(made(cpu_us=300.0) | {"release_us": 100.0}) == 400.0


def test_rate_share_and_switches():
    one = made(seconds=0.5, share=0.25, voluntary=3)
    assert figures.rate(one) == pytest.approx(0.016)
    assert figures.share(one) == 25.0
    assert figures.switches(one) == pytest.approx(3 * 1073.741824)


def test_ratios_are_taken_inside_rounds():
    ours, theirs = [made(100.0), made(900.0)], [made(100.0), made(300.0)]
    assert figures.ratio(ours, theirs, figures.cpu).median == 2.0
    assert figures.ratio([{"error": "x"}], theirs, figures.cpu) is None


@pytest.mark.parametrize(
    ("auto", "copy", "map_", "dearer", "slower", "better"),
    [
        ((110, 1.0), (100, 1.0), (200, 2.0), 1.1, 1.0, "copy"),
        ((110, 2.0), (200, 1.0), (100, 4.0), 1.1, 2.0, "map"),
        ((90, 1.0), (100, 2.0), (100, 2.0), 0.9, 0.5, "copy"),
    ],
)
def test_auto_is_compared_with_the_better(auto, copy, map_, dearer, slower, better):
    cell = "auto/pages-keep/splice/whole/1m"
    found = figures.choice(result_of(cell, auto=[made(*auto)], copy=[made(*copy)],
                                     map=[made(*map_)]))
    assert (found.dearer, found.slower) == (pytest.approx(dearer), pytest.approx(slower))
    assert found.better == better
    assert found.worst == max(found.dearer, found.slower)


def test_the_cost_of_a_choice_by_counts():
    """A quarter of the bytes went by mapping, half of "map"'s did: so it half costs as "map"."""
    def counted(mapped, in_vain=0, cpu_us=100.0):
        counters = {"bytes_mapped": mapped, "bytes_copybuf": 0, "map_unmappable": in_vain}
        return made(cpu_us, share=mapped / (1 << 20), bytes=1 << 20, counters=counters)
    found = figures.choice(result_of(
        "auto/pages/splice/whole/1m", auto=[counted(1 << 18, cpu_us=999.0)],
        copy=[counted(0)], map=[counted(1 << 19, cpu_us=300.0)],
        copy_again=[counted(0, cpu_us=110)],
    ))
    assert found.counted == pytest.approx(2.0)
    assert found.noise == pytest.approx((1.1, 1.1))
    none = figures.choice(result_of(
        "auto/pages/plain/whole/1m", auto=[counted(0, in_vain=4)], copy=[counted(0)],
        map=[counted(0, in_vain=16, cpu_us=50.0)], copy_again=[counted(0)],
    ))
    assert none.counted == pytest.approx(0.875)  # "map" maps nothing: less than "copy" is noise


def test_a_cell_without_a_side_is_no_choice():
    assert figures.choice(result_of("auto/pages/plain/whole/1m", auto=[made()])) is None


def test_verdicts():
    def judge(*arguments, **sides):
        return [one.met for one in figures.verdicts(result_of(*arguments, **sides))]
    mapping = "mapping/loopback/splice/256k"
    base = [made(1000.0, share=0.95)]
    assert judge(mapping, C=base, zcloop=[made(1090.0, share=0.945)]) == [True, True]
    assert judge(mapping, C=base, zcloop=[made(1110.0, share=0.93)]) == [False, False]
    assert judge(mapping, C=base, zcloop=[{"error": "x"}]) == [False, False]
    lowat = {"zcloop_lowat_1": [made(voluntary=100)],
             "zcloop_lowat_256k": [made(700.0, voluntary=39)],
             "zcloop_aligned_lowat_1": [made(voluntary=100)],
             "zcloop_aligned_lowat_256k": [made(590.0, voluntary=41)]}
    assert judge("lowat/256k/16k", **lowat) == [True, False, False, True]
    calls = {"zcloop_pages_map": [made(calls={"getsockopt": 1.5, "recvfrom": 0.5, "sendto": 1})]}
    assert judge("rpc/32k", **calls) == [True]
    calls["zcloop_pages_map"][0]["calls"]["read"] = 1.0
    assert judge("rpc/32k", **calls) == [False]


def test_every_cell_has_its_verdicts_or_none_measured():
    for cell in CELLS.values():
        found = figures.verdicts(Result(cell))
        assert found
        assert not any(one.met for one in found)


# -- the command line ---------------------------------------------------------


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """Where raw data goes in these tests."""
    folder = tmp_path / "results"
    monkeypatch.setattr(results, "RESULTS", folder)
    return folder


def test_ids_are_unique_and_every_table_has_cells():
    assert len(CELLS) == len(all_cells())
    assert {cell.table for cell in CELLS.values()} == set(TABLES)
    assert {cell.table for cell in quick_cells()} == set(TABLES)


def test_a_run_prints_a_table_and_keeps_raw_data(kept, tmp_path, capsys):
    copy = tmp_path / "copy.json"
    arguments = ["--only", "lowat/256k/16k/paced", "--rounds", "1", "--mib", "4"]
    arguments += ["--json", str(copy)]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    for side in CELLS["lowat/256k/16k"].sides:
        assert f"  {side.name}  " in shown
    assert "of 4 targets met" in shown
    assert "\x1b" not in shown
    (stored,) = kept.glob("receive-*.json")
    document = json.loads(stored.read_text())
    assert document == json.loads(copy.read_text())
    assert document["environment"].keys() >= {"kernel", "cpu", "python", "hash", "cpus_used"}
    (cell,) = document["cells"]
    assert {name: len(samples) for name, samples in cell["samples"].items()} == {
        side.name: 1 for side in CELLS["lowat/256k/16k"].sides}
    assert cli.main(["--show", str(copy)]) == 0
    table = [line for line in shown.splitlines() if " lowat " in line]
    again = capsys.readouterr().out
    assert all(line in again for line in table)


def test_cells_come_back_from_disk_as_they_were(tmp_path):
    path = tmp_path / "x.json"
    before = [Result(cell, {}, "why not") for cell in CELLS.values()]
    store.save(path, {}, before)
    assert store.load(path) == ({}, before)


def test_the_grid_names_its_worst_cell(capsys):
    good = dict(copy=[made(100.0)], map=[made(200.0)])
    found = [
        result_of("auto/pages-keep/splice/whole/1m", auto=[made(101.0)], **good),
        result_of("auto/pages-keep/plain/whole/256k", auto=[made(130.0)], **good),
    ]
    report.print_table(report.Console(width=160, color_system=None), "auto", found)
    shown = capsys.readouterr().out
    assert "1 of 2 cells are more than 5 %" in shown
    assert "worst: auto/pages-keep/plain/whole/256k, CPU 1.30, time 1.00" in shown
    assert re.search(r"pages-keep/splice/whole +- +1\.01 1\.00 \(50 %\)", shown)


def test_failed_samples_are_told_once(capsys):
    ids = ["mapping/loopback/splice/256k", "mapping/loopback/splice/1m"]
    found = [result_of(one, C=[made()], zcloop=[{"error": "gone"}] * 2) for one in ids]
    assert report.notes(found) == [f"4 samples failed, zcloop: gone ({', '.join(ids)})"]


def test_list_and_refusals(capsys):
    assert cli.main(["--list"]) == 0
    assert capsys.readouterr().out.split() == list(CELLS)
    assert cli.main(["--only", "nothing"]) == 2
    assert "no cell matches" in capsys.readouterr().err
    assert select(CELLS.values(), ["rpc"]) == [CELLS["rpc/32k"]]


def test_a_run_is_resumed(tmp_path, capsys):
    """Cells and rounds that the file lacks are added to it, and nothing is measured twice."""
    path = tmp_path / "grid.json"

    def rounds(*arguments):
        assert cli.main([*arguments, "--resume", str(path), "--mib", "4"]) == 0
        return {
            result.cell.id: [len(samples) for samples in result.samples.values()]
            for result in store.load(path)[1]
        }

    one, other = "auto/reused/plain/whole/256k", "auto/reused/plain/whole/1m"
    assert rounds("--only", one, "--rounds", "1") == {one: [1] * 4}
    kept = store.load(path)[1][0].samples["copy"][0]
    both = ["--only", one, "--only", other]
    assert rounds(*both, "--rounds", "1", "--seconds", "0") == {one: [1] * 4}
    assert rounds(*both, "--rounds", "2") == {one: [2] * 4, other: [2] * 4}
    first = next(r for r in store.load(path)[1] if r.cell.id == one)
    assert first.samples["copy"][0] == kept
    assert "reused/plain/whole" in capsys.readouterr().out


@pytest.mark.parametrize(("strict", "status"), [([], 0), (["--strict"], 1)])
def test_only_strict_makes_a_missed_target_a_failure(strict, status, tmp_path, capsys):
    path = tmp_path / "x.json"
    from benchmarks import environment
    stamp = environment.describe() | {"rounds": 1, "hash": True, "cpus_used": None}
    store.save(path, stamp, [Result(CELLS["rpc/32k"])])
    assert cli.main(["--show", str(path), *strict]) == status
    assert "0 of 1 targets met" in capsys.readouterr().out

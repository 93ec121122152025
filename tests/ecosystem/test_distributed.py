"""Dask's `distributed` takes its loop from asyncio's policy: a scheduler and workers that talk
over TCP, by either of its two transports (tornado's IOStream, which watches descriptors with
add_reader; and its own over asyncio's), scatter and gather arrays of 64 MiB and compute on them.

In a process of its own, since it leaves threads behind."""
import subprocess
import sys

import pytest
from http_tools import child_environment

PROGRAM = """
import asyncio, importlib, sys, tempfile, warnings

name, transport = sys.argv[1:]
if name != "asyncio":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)     # policies, from Python 3.12 on
        asyncio.set_event_loop_policy(importlib.import_module(name).EventLoopPolicy())

import dask
import numpy
from distributed import Client, LocalCluster

# None of its own time limits: the machine may be slow.
dask.config.set({
    "distributed.comm.tcp.backend": transport, "distributed.worker.memory.spill": False,
    "distributed.worker.memory.target": False, "distributed.scheduler.worker-ttl": None,
    "distributed.comm.timeouts.connect": "1h", "distributed.comm.timeouts.tcp": "1h"})

async def loop_of_this_thread():
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]

def main():
    # Without processes it would otherwise use no sockets at all.
    with tempfile.TemporaryDirectory() as folder, LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, protocol="tcp://",
            host="127.0.0.1", dashboard_address=None, local_directory=folder) as cluster:
        with Client(cluster) as client:
            print(client.sync(loop_of_this_thread), client.scheduler.address.partition(":")[0])
            array = numpy.random.default_rng(1).integers(0, 1 << 60, 8 * 1024 * 1024)
            assert array.nbytes == 64 * 1024 * 1024
            [remote] = client.scatter([array], hash=False, workers=[cluster.workers[0].address])
            elsewhere = client.submit(
                numpy.add, remote, 1, workers=[cluster.workers[1].address], pure=False)
            assert client.submit(numpy.sum, remote).result() == array.sum()
            assert (client.gather(elsewhere) == array + 1).all()
            assert (client.gather(remote) == array).all()
            assert client.gather(client.map(abs, range(-200, 0))) == list(range(200, 0, -1))
    print("done")

main()
"""


# What it says of a slow machine.
SLOW = ["-W", "ignore:Creating scratch directories is taking:UserWarning"]


@pytest.mark.parametrize("transport", ["tornado", "asyncio"])
def test_scatter_and_gather(loop_factory, transport):
    run = subprocess.run(
        [sys.executable, "-W", "error", *SLOW, "-c", PROGRAM, loop_factory.name, transport],
        env=child_environment(loop_factory), capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout == f"{loop_factory.name} tcp\ndone\n", run.stdout + run.stderr

"""Mapped memory and forks.

Proves that a child reads the views and buffers that it inherits, maps into an arena of its own,
and lets go of everything without disturbing its parent; that no fork finds a lock held; and that
a child made by spawning starts from nothing.  Each case forks in a process of its own.
"""
import pytest
from mapped_streams import needs_mapping, run_script

pytestmark = needs_mapping

PRELUDE = """
from mapped_streams import *

def forked(work):
    "Runs work() in a child, which must return from it."
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def run(script):
    run_script(PRELUDE + script)


def test_a_child_reads_inherited_views_and_maps_into_an_arena_of_its_own():
    run("""
data, more = pattern(32, seed=1), pattern(48, seed=2)
views = views_of(data)
before = pages.page_stats()

def work():
    global views
    assert b"".join(views) == data
    assert pages.page_stats().arena_bytes == 0
    parts = receive(more)
    own = pages.page_stats()
    assert own.arena_bytes == before.arena_bytes
    assert b"".join(parts) == more
    assert own.leased_bytes == sum(len(p) for p in parts if isinstance(p, memoryview))
    assert b"".join(views) == data
    views = None
    assert leased() == own.leased_bytes        # those weren't of this arena
    assert b"".join(parts) == more
    forked(lambda: (b"".join(parts) == more or 1/0))
    del parts
    assert leased() == 0

forked(work)
assert pages.page_stats() == before
assert b"".join(views) == data
again = receive(more)
assert b"".join(again) == more
assert b"".join(views) == data
""")


def test_a_parent_that_lets_go_first():
    """What the parent unmaps and uses anew stays what it was in the child."""
    run("""
data = pattern(32, seed=1)
views = views_of(data)
start, started = os.pipe()
child = os.fork()
if child == 0:
    os.close(started)
    os.read(start, 1)                       # until the parent has used the memory for others
    os._exit(0 if b"".join(views) == data else 1)
del views
assert leased() == 0
for seed in range(8):
    other = receive(pattern(600, seed))
    assert b"".join(other) == pattern(600, seed)
os.close(started)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""")


def test_a_child_receives_into_an_inherited_buffer():
    run("""
buffer = zcloop.PageBuffer(16 * PAGE, exact=True)
mine, other = pattern(16, seed=3), pattern(16, seed=4)
fill(buffer, mine)

def work():
    assert memoryview(buffer) == mine
    fill(buffer, other)
    forked(lambda: fill(buffer, mine))
    assert memoryview(buffer) == other

forked(work)
assert memoryview(buffer) == mine
fill(buffer, other)
""")


def test_a_child_that_ends_as_a_program_does():
    """It finalises its interpreter, with inherited views and its own."""
    run("""
import sys
views = views_of(pattern(8))
buffer = zcloop.PageBuffer(8 * PAGE)
child = os.fork()
if child == 0:
    own = views_of(pattern(8))
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert b"".join(views) == pattern(8)
""")


def test_a_fork_while_other_threads_lease():
    """None of the children finds the arena's lock held, or its lists half changed."""
    run("""
import warnings
warnings.simplefilter("ignore", DeprecationWarning)    # of forking with threads: it is the point
data = pattern(16, seed=1)
views = views_of(data)
stop, rounds = threading.Event(), [0, 0]

def work(number):
    while not stop.is_set():
        receive(pattern(64, seed=number), on_view=lambda view: None)
        rounds[number] += 1

def child():
    # Only what zcloop's C core does: other locks of the process may be held.
    global views
    assert b"".join(views) == data
    views = None
    assert pages.page_stats().leased_bytes == 0
    buffer = zcloop.PageBuffer(PAGE)
    del buffer

threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
forks = 0
while forks < 60 or min(rounds) < 2:
    forked(child)
    forks += 1
stop.set()
for thread in threads:
    thread.join()
assert b"".join(views) == data
""")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(method):
    run(f"""
import multiprocessing
data = pattern(16, seed=5)
views = views_of(data)
before = pages.page_stats()
context = multiprocessing.get_context({method!r})
children = [context.Process(target=receive, args=(data,)) for _ in range(2)]
for child in children:
    child.start()
for child in children:
    child.join()
    assert child.exitcode == 0
    child.close()
assert pages.page_stats() == before
assert b"".join(views) == data
""")

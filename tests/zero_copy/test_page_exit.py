"""A program that ends with mapped memory in use ends cleanly.

Proves that, whoever still holds a view or a buffer when the interpreter is finalised, and in
whatever order it is taken apart, the process ends with code 0 and prints nothing.
"""
import pytest
from mapped_streams import needs_mapping, run_script

pytestmark = needs_mapping

PRELUDE = """
from mapped_streams import *
import atexit, builtins, numpy, sys, weakref
data = pattern(8)
views = views_of(data)
"""

HOLDERS = {
    "a global of the program": "",
    "another module": "sys.views = builtins.views = views",
    "a cycle": "views.append(views); del views",
    "an array": "array = [numpy.frombuffer(view, numpy.uint8) for view in views]; del views",
    "an exception": """
try:
    raise ValueError(views)
except ValueError as exc:
    kept = exc
del views""",
    "a generator that never ended": """
def generate(views):
    yield views
generator = generate(views)
next(generator)
del views""",
    "a blocked daemon thread": """
def block(views, ready):
    ready.set()
    threading.Event().wait()
ready = threading.Event()
threading.Thread(target=block, args=(views, ready), daemon=True).start()
ready.wait()
del views""",
    "a loop that was never closed": """
loop = zcloop.new_event_loop(MAP)
protocol = loop.run_until_complete(serve_one(Pages, data))
del loop""",
    "an exit handler that reads": """
atexit.register(lambda views: print(b"".join(views) == data), views)
del views""",
    "a finaliser that reads": """
class Late:
    pass
late = Late()
weakref.finalize(late, lambda views: print(b"".join(views) == data), views)
del views""",
    "a __del__ that reads": """
class Late:
    def __init__(self, views):
        self.views, self.expected, self.say = views, data, print
        self.me = self
    def __del__(self):
        self.say(b"".join(self.views) == self.expected)
builtins.late = Late(views)
del views""",
    "a connection under way": """
async def leave():
    loop = asyncio.get_running_loop()
    listener = listen()
    protocols = []
    server = await loop.create_server(lambda: protocols.append(Pages()) or protocols[-1],
                                      sock=listener)
    thread = threading.Thread(target=send, args=(listener.getsockname(), data), daemon=True)
    thread.start()
    while not protocols or not protocols[0].parts:
        await asyncio.sleep(0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)    # what is left open is complained about
    sys.exit(0)
zcloop.run(leave(), config=MAP)""",
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_views_that_are_alive_at_exit(holder):
    output = run_script(PRELUDE + HOLDERS[holder])
    assert output == ("True\n" if "reads" in holder else "")


def test_buffers_that_are_alive_at_exit():
    """With pages moved into them."""
    run_script(PRELUDE + """
sys.buffer = zcloop.PageBuffer(len(data))
fill(sys.buffer, data)
sys.view = memoryview(zcloop.PageBuffer(5 * PAGE))[7:]
builtins.cycle = [zcloop.PageBuffer(len(data))]
fill(builtins.cycle[0], data)
builtins.cycle += [builtins.cycle, numpy.frombuffer(builtins.cycle[0], numpy.uint8)]
""")

"""Sends MIB MiB in writes of SIZE bytes with Config(send=MODE); before each one a header of HEADER
bytes, 0 for none. Run by test_send_pages.py, in a network namespace where it is asked for.

    python page_sender.py HOST PORT MODE MIB SIZE HEADER
"""
import dataclasses
import hashlib
import json
import random
import sys

import zcloop


async def send(host, port, total, size, header):
    block = random.Random(4096).randbytes(size + 4096)
    digest = hashlib.sha1()
    reader, writer = await zcloop.open_connection(host, port)
    left = total
    while left:
        if header:
            writer.write(head := block[-header:])
            digest.update(head)
        start = left // size % 4096         # the sender's memory need not begin with a page
        data = block[start:start + min(size, left)]
        writer.write(data)
        digest.update(data)
        left -= len(data)
        await writer.drain()
    writer.write_eof()
    await reader.read()
    counters = writer.get_extra_info("zcloop")
    writer.close()
    await writer.wait_closed()
    return {"hash": digest.hexdigest(), "stats": dataclasses.asdict(counters)}


def main():
    host, port, mode, *sizes = sys.argv[1:]
    mib, size, header = map(int, sizes)
    config = zcloop.Config(send=mode)
    done = zcloop.run(send(host, int(port), mib << 20, size, header), config=config)
    print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()

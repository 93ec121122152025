"""The memory that iter_body lends: as large as the body needs, used again, and bounded."""
import pytest

pytest.importorskip("aiohttp", reason="zcloop.contrib.aiohttp is about aiohttp")

from zcloop.contrib import memory
from zcloop.contrib.memory import Piece

KIB = 1024
MIB = 1024 * KIB


@pytest.fixture(autouse=True)
def spare(monkeypatch):
    monkeypatch.setattr(memory, "_spare", [])
    return memory._spare


def use(size, left, *, keep=False):
    """One piece of an iteration from beginning to end; its memory's size, and a kept slice."""
    piece = Piece(size)
    room = len(piece.memory(left))
    view = piece.lend(min(left, room))
    kept = view[:] if keep else None
    piece.release()
    with pytest.raises(ValueError):
        view[0]
    return room, kept


@pytest.mark.parametrize("size, left, room", [
    (2 * MIB, 64 * MIB, 2 * MIB),
    (2 * MIB, MIB + 1, MIB + 512 * KIB),
    (2 * MIB, 1, 512 * KIB),
    (100_000, 64 * MIB, 100_000),
    (1, 64 * MIB, 1),
])
def test_memory_is_as_large_as_the_rest_of_the_body_needs(size, left, room):
    assert use(size, left)[0] == room


def test_memory_of_the_same_size_is_used_again(spare):
    use(2 * MIB, 64 * MIB)
    use(2 * MIB, 300 * KIB)
    large, small = spare
    use(2 * MIB, 3 * MIB)
    assert spare == [small, large]
    assert spare[1] is large


def test_what_somebody_keeps_a_slice_of_is_left_to_them(spare):
    _, kept = use(2 * MIB, MIB, keep=True)
    assert not spare
    use(2 * MIB, MIB)
    assert len(kept) == MIB


def test_spare_memory_is_bounded_and_the_last_used_stays(spare):
    pieces = [Piece(2 * MIB) for _ in range(3)]
    for piece in pieces:
        piece.memory(MIB)
    largest = Piece(2 * MIB)
    largest.memory(2 * MIB)
    del piece, pieces
    assert [len(buf) for buf in spare] == [MIB] * 3
    del largest
    assert [len(buf) for buf in spare] == [MIB, MIB, 2 * MIB]
    use(5 * MIB, 64 * MIB)
    assert [len(buf) for buf in spare] == [MIB, MIB, 2 * MIB]

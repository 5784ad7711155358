"""Every registration is a region of its own, to the byte, however its memory overlaps that of others.

Known from other stacks: a cache of registrations hands out the key of a neighbour in the same page; rounding to pages
exposes what lies beside a region.
"""

from __future__ import annotations

import pytest

from tests.helpers import forge
from tests.transport.test_queue_pair import outcome, pair_of
from transport.placement import Access

WRITABLE = Access.LOCAL_WRITE | Access.REMOTE_WRITE


@pytest.mark.parametrize("place", ["same", "overlapping", "inside", "behind"])
def test_each_registration_of_shared_memory_has_a_key_with_bounds_and_rights_of_its_own(place):
    page = bytearray(4096)
    places = {"same": (0x100, 0x140), "overlapping": (0x120, 0x160), "inside": (0x110, 0x120), "behind": (0x140, 0x180)}
    start, end = places[place]
    pair = pair_of()
    ours, theirs = pair.connect()
    domain = theirs.context.domain
    first = domain.register(memoryview(page)[0x100:0x140], WRITABLE)
    second = domain.register(memoryview(page)[start:end], Access.REMOTE_READ)
    assert first.rkey != second.rkey
    for key, address in ((second.rkey, second.address), (second.rkey, first.address), (first.rkey, second.address)):
        pair.inject(forge(ours, ours.sender.next, b"\xee", key, address))
        pair.drive()
        assert not any(page)
    second.deregister()
    ours.post_write(pair.now, 1, b"f" * 64, first.address, first.rkey)
    pair.drive()
    assert outcome(pair.alice, ours) == [(1, "SUCCESS")]
    assert page == bytes(0x100) + b"f" * 64 + bytes(4096 - 0x140)


def test_a_region_that_is_registered_again_after_its_end_has_a_new_key_and_the_old_one_stays_dead():
    buffer = bytearray(64)
    pair = pair_of()
    ours, theirs = pair.connect()
    keys = set()
    for _ in range(50):
        region = theirs.context.domain.register(buffer, WRITABLE)
        address, key = region.address, region.rkey
        assert key not in keys
        keys.add(key)
        region.deregister()
        pair.inject(forge(ours, ours.sender.next, b"\xee" * 64, key, address))
        pair.drive()
    assert not any(buffer)
    assert pair.bob.endpoint.counters()["dropped_bad_key"] == 50


@pytest.mark.parametrize("size", [1, 63, 64, 4095, 4096, 4097, 8192])
def test_no_byte_before_or_behind_a_region_can_be_reached_whatever_its_size(size):
    pair = pair_of()
    ours, theirs = pair.connect()
    memory = bytearray(size + 200)
    domain = theirs.context.domain
    regions = [domain.register(memoryview(memory)[100 : 100 + size], WRITABLE) for _ in range(2)]
    tried = 0
    for region in regions:
        for address, length in (
            (region.address - 1, 1), (region.address + size, 1), (region.address - 1, 2),
            (region.address + size - 1, 2), (region.address - 4096, 1), (region.address + 4096 + size, 1),
        ):  # fmt: skip
            pair.inject(forge(ours, ours.sender.next, b"\xee" * length, region.rkey, address))
            pair.drive()
            tried += 1
    assert not any(memory)
    assert pair.bob.endpoint.counters()["dropped_bad_key"] == tried

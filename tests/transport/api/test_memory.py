"""Memory regions and what is told of them: numpy arrays, slices, bounds, and descriptions by a peer."""

from __future__ import annotations

import array
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.api.worlds import ALL
from transport.api.blocking import Access, Device, MemoryRegion, ProtectionDomain, RemoteRegion
from transport.api.memory import local_bytes
from transport.errors import ConfigError, LocalProtocolError, NegotiationError
from transport.nic.loopback import LoopbackNic, Network

READ_ONLY = np.zeros(4)
READ_ONLY.setflags(write=False)


@pytest.fixture(scope="module")
def pd() -> Iterator[ProtectionDomain]:
    with Device(LoopbackNic(Network(), bytes([10, 0, 0, 1]))) as device:
        yield ProtectionDomain(device)


@pytest.mark.parametrize(
    "buffer",
    [
        bytearray(24), array.array("d", [0.0] * 3), memoryview(bytearray(24)), np.zeros((2, 3, 4), np.int8),
        np.zeros((3, 2), np.float32), np.zeros(3, ">f8"), np.zeros(3, np.complex64), np.zeros((), "S24"),
        np.zeros(2, [("a", np.int32), ("b", np.float64)]), np.zeros((6, 4), np.int8)[3:],
    ],
    ids=lambda buffer: f"{type(buffer).__name__} {getattr(buffer, 'dtype', '')} {getattr(buffer, 'shape', '')}",
)  # fmt: skip
def test_any_contiguous_buffer_is_a_region_and_is_not_copied(pd: ProtectionDomain, buffer: Any) -> None:
    region = MemoryRegion(pd, buffer, ALL)
    assert len(region) == region.remote.length == memoryview(buffer).nbytes
    region.view[-2:] = b"\x01\x02"
    assert memoryview(buffer).tobytes()[-2:] == b"\x01\x02"


@pytest.mark.parametrize(
    ("buffer", "access", "message"),
    [
        (np.zeros((4, 4))[:, 1:3], ALL, "not C-contiguous"),
        (np.asfortranarray(np.zeros((4, 4))), ALL, "not C-contiguous"),
        (np.array([object()]), ALL, "Python objects"),
        (np.zeros(2, "M8[s]"), ALL, "buffer = ndarray"),
        ("text", ALL, "buffer = str"),
        (None, ALL, "buffer = NoneType"),
        (b"constant", ALL, "read-only"),
        (READ_ONLY, Access.LOCAL_WRITE, "read-only"),
        (bytearray(8), Access.REMOTE_WRITE, "need LOCAL_WRITE"),
        (-1, ALL, "length = -1"),
        ((1 << 32) + 1, ALL, "length = 4294967297"),
    ],
)
def test_a_buffer_that_cannot_be_registered_is_named(
    pd: ProtectionDomain, buffer: Any, access: Access, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        MemoryRegion(pd, buffer, access)


def test_a_number_makes_a_new_buffer_of_zeroes(pd: ProtectionDomain) -> None:
    assert bytes(MemoryRegion(pd, 5, ALL).view) == bytes(5)


def test_read_only_memory_may_be_read_by_peers(pd: ProtectionDomain) -> None:
    assert MemoryRegion(pd, b"constant", Access.REMOTE_READ).remote.length == 8


@given(st.data())
def test_slices_of_slices_are_those_of_the_bytes_on_both_sides(pd: ProtectionDomain, data: st.DataObject) -> None:
    content = bytes(range(100))
    with MemoryRegion(pd, bytearray(content), ALL) as region:
        part, remote, first = region[:], region.remote, 0
        for _ in range(data.draw(st.integers(0, 4))):
            start = data.draw(st.integers(0, len(part)))
            stop = data.draw(st.integers(start, len(part)))
            part, remote, first = part[start:stop], remote[start:stop], first + start
        assert part.view == content[first : first + len(part)]
        assert part.remote == remote
        assert (remote.address, remote.length) == (region.remote.address + first, len(part))


@pytest.mark.parametrize(
    "part", [slice(0, 11), slice(-3, None), slice(5, 4), slice(11, None), slice(None, -1), slice(0, 4, 2), 3]
)
def test_a_slice_beyond_the_bounds_is_refused_here_and_at_the_peer(pd: ProtectionDomain, part: Any) -> None:
    region = MemoryRegion(pd, 10, ALL)
    for whole in (region, region[:], region.remote):
        with pytest.raises(ConfigError, match=r"slice"):
            whole[part]


def test_a_closed_region_gives_nothing_away(pd: ProtectionDomain) -> None:
    region = MemoryRegion(pd, 10, ALL)
    part = region[2:4]
    region.close()
    region.close()
    for use in (lambda: region.view, lambda: part.view, lambda: region.remote, lambda: part.remote):
        with pytest.raises(LocalProtocolError, match="was closed"):
            use()


def test_a_region_without_local_write_is_no_target() -> None:
    with Device(LoopbackNic(Network(), bytes([10, 0, 0, 1]))) as device:
        region = MemoryRegion(ProtectionDomain(device), 10, Access.REMOTE_READ)
        with pytest.raises(ConfigError, match="LOCAL_WRITE is needed"):
            local_bytes(region[1:], "local", written=True)
        assert local_bytes(region[1:], "local").nbytes == 9


@given(st.builds(RemoteRegion, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32)))
def test_what_a_peer_tells_of_its_memory_survives_json(region: RemoteRegion) -> None:
    assert RemoteRegion.from_json(json.loads(json.dumps(region.to_json()))) == region


@pytest.mark.parametrize(
    "told",
    [
        None, [], "region", {}, {"address": 1, "rkey": 2}, {"address": 1, "rkey": 2, "length": 3, "more": 4},
        {"address": -1, "rkey": 2, "length": 3}, {"address": 1 << 64, "rkey": 2, "length": 3},
        {"address": 1, "rkey": 1 << 32, "length": 3}, {"address": 1, "rkey": 2, "length": (1 << 32) + 1},
        {"address": 1, "rkey": True, "length": 3}, {"address": 1.0, "rkey": 2, "length": 3},
    ],
)  # fmt: skip
def test_a_peers_description_that_is_none_is_refused(told: object) -> None:
    with pytest.raises(NegotiationError, match="region"):
        RemoteRegion.from_json(told)

"""Nics on sockets, opened for a test and closed after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.transport.nic.helpers import ALICE, BOB, ENTROPIES, KINDS, Open
from transport.nic import udp
from transport.nic.udp import UdpNic


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[UdpNic]:
    """The class to test, each with each leaf in turn. A module that is only about one class overrides `kind`."""
    cls, leaf = KINDS[request.param]
    monkeypatch.setattr(udp, "_mmsg", leaf)
    return cls


@pytest.fixture
def nic(kind: type[UdpNic]) -> Iterator[Open]:
    """Opens Nics that are closed when the test ends."""
    opened: list[UdpNic] = []

    def make(address: str = ALICE, entropies: list[int] | None = None, **knobs: object) -> UdpNic:
        opened.append(kind(address, ENTROPIES if entropies is None else entropies, **knobs))  # type: ignore[arg-type]
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@pytest.fixture
def pair(nic: Open) -> tuple[UdpNic, UdpNic]:
    return nic(ALICE), nic(BOB)

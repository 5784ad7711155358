"""Nics to run the faces on: a network in virtual time, one in real time, UDP sockets moved in two ways; two hosts of
each."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from transport.api import aio, blocking
from transport.clock import MS
from transport.config import EndpointConfig
from transport.nic.base import Nic
from transport.nic.dgram import DgramNic
from transport.nic.loopback import LoopbackNic, Network
from transport.placement import Access

WORLDS = ("virtual", "real", "udp", "dgram")
ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC
#: Gives up on a silent peer within a second.
IMPATIENT = EndpointConfig(retries=2, rto_min=10 * MS, control="swift")


def nics(world: str) -> tuple[Nic | str, Nic | str]:
    """What the devices of two hosts are made from."""
    if world == "udp":
        return "127.0.0.1", "127.0.0.2"
    if world == "dgram":
        return one_nic(world), one_nic(world, "127.0.0.2")
    network = Network(virtual=world == "virtual")
    return LoopbackNic(network, bytes([10, 0, 0, 1])), LoopbackNic(network, bytes([10, 0, 0, 2]))


def one_nic(world: str, address: str = "127.0.0.1") -> Nic | str:
    """What the device of a host that is alone is made from."""
    if world == "dgram":
        return DgramNic(address, EndpointConfig().ports())
    return nics(world)[0]


def run(program: Coroutine[Any, Any, None]) -> None:
    """Run an asyncio program, at most a minute; it must leave no task behind."""

    async def whole() -> None:
        async with asyncio.timeout(60):
            await program
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(whole())


def connected(ours: aio.Device, theirs: aio.Device) -> tuple[aio.QueuePair, aio.QueuePair]:
    """A connected pair of queue pairs, each in a protection domain of its own."""
    left, right = aio.QueuePair(aio.ProtectionDomain(ours)), aio.QueuePair(aio.ProtectionDomain(theirs))
    left.connect_to(right.parameters)
    right.connect_to(left.parameters)
    return left, right


def with_itself(device: blocking.Device) -> tuple[blocking.QueuePair, blocking.QueuePair]:
    """Two queue pairs of one device, in one protection domain, connected with each other."""
    pd = blocking.ProtectionDomain(device)
    left, right = blocking.QueuePair(pd), blocking.QueuePair(pd)
    left.connect_to(right.parameters)
    right.connect_to(left.parameters)
    return left, right

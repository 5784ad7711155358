"""A send of many segments arrives whole, is split, or is refused by name; it is never cut short in silence.

Known from other stacks: a batch one datagram too long for the kernel is dropped without a word, a failed offload is not
sent again plainly, and receive batches are smaller than what one send brings.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.transport.nic.helpers import data, receive_segments, segments
from transport.config import EndpointConfig
from transport.driver import Driver
from transport.endpoint import Endpoint
from transport.nic.udp import BATCH, UdpNic
from transport.placement import Access

pytestmark = pytest.mark.xdist_group("ports")

ALICE, BOB = "127.1.0.1", "127.1.0.2"
PORTS = (50001, 50002)


@pytest.fixture
def nics() -> Iterator[tuple[UdpNic, UdpNic]]:
    with_run = {"max_run": BATCH}
    alice = UdpNic(ALICE, PORTS, **with_run)
    bob = UdpNic(BOB, PORTS, **with_run)
    yield alice, bob
    alice.close()
    bob.close()


@pytest.mark.parametrize("count", [1, 14, 15, 16, 17, 30, 31, 32, 44, 45, 46, 47, 63, 64, 65, 128, 255, 256])
@pytest.mark.parametrize("short", [0, 1, 4095])
def test_a_run_of_any_length_arrives_whole(nics, count, short):
    """15 datagrams of 4,128 bytes fit into the 65,507 of one segmented send, 16 do not."""
    alice, bob = nics
    run = data(alice.address, bob.address, 0, count, length=count * 4096 - short)
    assert alice.send([run]) == 1
    received = receive_segments(bob, count)
    assert segments(received) == segments([run])
    assert alice.counters()["sent"] == count


@pytest.mark.parametrize("max_run", [1, 15, 16, 46, 64])
def test_every_byte_of_a_transfer_in_runs_arrives_over_sockets(max_run):
    """More than 46 segments at a time, for which a receive batch of 45 is too small."""
    hosts = []
    for address in (ALICE, BOB):
        nic = UdpNic(address, PORTS)
        config = EndpointConfig(entropies=PORTS, max_run=max_run, control="fixed")
        endpoint = Endpoint(config, nic.address, nic.caps, random.Random(address))
        hosts.append((Driver(endpoint, nic), endpoint.create_connection(endpoint.protection_domain(), nic.now())))
    (near, ours), (far, theirs) = hosts
    ours.connect(near.now(), theirs.parameters)
    theirs.connect(far.now(), ours.parameters)
    source, target = random.Random(18).randbytes(3 << 20), bytearray(3 << 20)
    region = theirs.context.domain.register(target, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    ours.post_write(near.now(), 1, source, region.address, region.rkey)
    done: list[str] = []
    for _ in range(200_000):
        done += [completion.status.name for completion in near.step()]
        far.step()
        if done:
            break
    for driver, _ in hosts:
        driver.close()
    assert done == ["SUCCESS"]
    assert target == source

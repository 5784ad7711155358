"""Time wraps too: a machine that has been up for months is served like one that has just started.

The monotonic clock of the system counts from boot. In picoseconds it reaches NEVER after 53 days and the end of 63 bits
after 106, beyond which timers neither fire nor fit.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import Pair, Wire
from tests.transport.test_queue_pair import expose, outcome
from transport.clock import NEVER, SECOND, US
from transport.nic import realtime

pytestmark = pytest.mark.xdist_group("ports")

ROOT = Path(__file__).resolve().parent.parent.parent
DAY = 86_400

PROGRAM = """
import sys, time
real, ahead = time.monotonic_ns, int(sys.argv[1]) * 10**9
time.monotonic_ns = lambda: real() + ahead

import random
from transport.clock import NEVER
from transport.config import EndpointConfig
from transport.driver import Driver
from transport.endpoint import Endpoint
from transport.nic.loopback import LoopbackNic, Network
from transport.nic.udp import UdpNic
from transport.placement import Access

PORTS = (50001, 50002)
SOURCE = bytes(range(256)) * 1024

def transfer(nics):
    hosts = []
    for nic in nics:
        endpoint = Endpoint(EndpointConfig(entropies=PORTS), nic.address, nic.caps, random.Random(1))
        hosts.append((Driver(endpoint, nic), endpoint.create_connection(endpoint.protection_domain(), nic.now())))
    (near, ours), (far, theirs) = hosts
    ours.connect(near.now(), theirs.parameters)
    theirs.connect(far.now(), ours.parameters)
    target = bytearray(len(SOURCE))
    region = theirs.context.domain.register(target, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    ours.post_write(near.now(), 1, SOURCE, region.address, region.rkey)
    done = []
    for _ in range(200_000):
        done += [completion.status.name for completion in near.step()]
        far.step()
        if done:
            break
    before = near.now()
    near.nic.wait(before + 1_000_000)
    print(done, target == SOURCE, 0 <= before <= near.now() < NEVER // 4)
    near.close()
    far.close()

transfer([UdpNic("127.1.0.1", PORTS), UdpNic("127.1.0.2", PORTS)])
network = Network(10_000_000_000, 1000, virtual=False)
transfer([LoopbackNic(network, bytes([10, 0, 0, 1])), LoopbackNic(network, bytes([10, 0, 0, 2]))])
"""


@pytest.mark.parametrize("days", [0, 53, 54, 106, 107, 1000, 10_000])
def test_sockets_and_loopback_work_on_a_machine_that_has_been_up_for_long(days):
    command = [sys.executable, "-c", PROGRAM, str(days * DAY + DAY // 2)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['SUCCESS'] True True"] * 2


def test_only_one_module_reads_the_systems_clock_for_a_nic():
    readers = [
        path.name
        for path in sorted((ROOT / "transport" / "nic").glob("*.py*"))
        if path.suffix in (".py", ".pyx") and "monotonic_ns" in path.read_text(encoding="utf-8")
    ]
    assert readers == ["realtime.py"]


def test_the_clock_does_not_run_backwards_and_starts_far_below_never():
    before = realtime.now()
    assert 0 <= before <= realtime.now() < NEVER // 3


@pytest.mark.parametrize("days", [0, 13, 40, 52])
def test_timers_and_retransmissions_work_at_any_time_the_clock_may_show(days):
    pair = Pair(control="dctcp", wire=Wire(loss=0.05, jitter=20 * US))
    pair.now = days * DAY * SECOND
    ours, theirs = pair.connect()
    target, region = expose(theirs, 1 << 20)
    source = random.Random(days).randbytes(1 << 20)
    for number in range(4):
        start = number << 18
        ours.post_write(pair.now, number, source[start : start + (1 << 18)], region.address + start, region.rkey)
    pair.drive_messages(4)
    assert outcome(pair.alice, ours) == [(number, "SUCCESS") for number in range(4)]
    assert target == source
    assert pair.alice.endpoint.counters()["retransmits"] > 0

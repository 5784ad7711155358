"""A segment that does not fit is refused before anything is connected, with the size that does.

Known from other stacks: 4096 chosen on a link of 1500 bytes, or on one side only, which fails at the first large
message and not before.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers import Pair, data_packets
from tests.transport.test_queue_pair import expose, outcome
from transport.config import EndpointConfig
from transport.errors import ConfigError
from transport.nic import link
from transport.nic.link import largest_payload
from transport.nic.udp import UdpNic
from transport.packet import ECT_0, Packet
from transport.wire import Codec

pytestmark = pytest.mark.xdist_group("ports")

ROOT = Path(__file__).resolve().parent.parent.parent
V4, V6 = bytes([10, 0, 0, 1]), bytes(15) + b"\1"


@pytest.mark.parametrize(
    ("link_mtu", "v4", "v6"),
    [
        (1500, 1024, 1024), (9000, 4096, 4096), (65536, 4096, 4096), (4180, 4096, 4096), (4179, 4096, 2048),
        (4160, 4096, 2048), (4159, 2048, 2048), (1088, 1024, 512), (1087, 512, 512), (340, 256, 256), (320, 256, 0),
        (319, 0, 0), (68, 0, 0),
    ],
)  # fmt: skip
def test_e3_ethernet_of_1500_carries_1024_and_every_link_what_fits(link_mtu, v4, v6):
    assert largest_payload(link_mtu, V4) == v4
    assert largest_payload(link_mtu, V6) == v6


@pytest.mark.parametrize("address", [V4, V6])
@pytest.mark.parametrize("mtu", [256, 512, 1024, 2048, 4096])
def test_the_headers_that_are_allowed_for_are_those_on_the_wire(address, mtu):
    packet = Packet()
    packet.src = packet.dst = address
    packet.entropy, packet.qpn, packet.ecn = 0xC000, 2, ECT_0
    packet.length = packet.segment = packet.stride = mtu
    packet.payload = bytes(mtu)
    size = len(Codec().frame(packet)) - 14
    assert largest_payload(size, address) == mtu
    assert largest_payload(size - 1, address) < mtu


@pytest.mark.parametrize(("mtu", "link_mtu", "most"), [(4096, 1500, 1024), (2048, 1500, 1024), (512, 400, 256)])
def test_a_segment_larger_than_the_link_is_refused_when_the_nic_is_opened(monkeypatch, mtu, link_mtu, most):
    monkeypatch.setattr(link, "mtu_of", lambda address: link_mtu)
    with pytest.raises(ConfigError, match=rf"mtu = {mtu}: the link of 127.1.0.1 .* {link_mtu}, at most {most}"):
        UdpNic("127.1.0.1", [50001], mtu=mtu)
    UdpNic("127.1.0.1", [50001], mtu=most).close()


def test_a_link_for_no_segment_at_all_is_named(monkeypatch):
    monkeypatch.setattr(link, "mtu_of", lambda address: 200)
    with pytest.raises(ConfigError, match="MTU of 200, it is too small for any segment"):
        UdpNic("127.1.0.1", [50001], mtu=256)


def test_the_link_of_an_address_is_found_and_of_a_strange_one_is_not():
    lo = max(size for size in (link.mtu_of(socket.inet_aton("127.0.0.1")), 0) if size is not None)
    assert lo >= 1500
    assert link.mtu_of(socket.inet_aton("192.0.2.77")) is None
    assert link.mtu_of(socket.inet_pton(socket.AF_INET6, "2001:db8::77")) is None


PROGRAM = """
import socket, sys
from transport.errors import ConfigError
from transport.nic.udp import UdpNic
for address in ("10.77.0.1", "10.78.0.1", "fd77::1"):
    for mtu in (256, 512, 1024, 2048, 4096):
        try:
            UdpNic(address, [50001], mtu=mtu).close()
        except ConfigError as error:
            print(error)
        else:
            print(address, mtu)
"""
SETUP = """
ip link set lo up && ip link add v0 type veth peer name v1 && ip link set v0 mtu {mtu} &&
ip address add 10.77.0.1/24 dev v0 && ip address add 10.78.0.1/24 dev v0 &&
ip address add fd77::1/64 dev v0 nodad && ip link set v0 up && ip link set v1 up && exec "$0" -c "$1"
"""


def on_a_link_of(mtu: int) -> list[str]:
    """What a program prints that opens Nics on three addresses of a real link of this MTU."""
    why = "" if os.geteuid() == 0 and shutil.which("ip") and shutil.which("unshare") else "needs root, ip and unshare"
    if not why and subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode:
        why = "network namespaces are not allowed"
    if why and os.environ.get("CI"):
        pytest.fail(why)
    if why:
        pytest.skip(why)
    command = ["unshare", "-n", "sh", "-c", SETUP.format(mtu=mtu), sys.executable, PROGRAM]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("mtu", "most"), [(1500, 1024), (9000, 4096), (4160, 4096)])
def test_on_a_real_link_each_address_takes_what_fits_and_no_more(mtu, most):
    found = on_a_link_of(mtu)
    expected = []
    for address in ("10.77.0.1", "10.78.0.1", "fd77::1"):
        limit = 2048 if ":" in address and mtu == 4160 else most
        for size in (256, 512, 1024, 2048, 4096):
            refused = f"mtu = {size}: the link of {address} has an MTU of {mtu}, at most {limit} is allowed"
            expected.append(refused if size > limit else f"{address} {size}")
    assert found == expected


@pytest.mark.parametrize("sizes", [(4096, 1024), (1024, 4096), (256, 2048)])
def test_both_sides_use_the_smaller_mtu_from_the_first_packet_on(sizes):
    pair = Pair(mtu=sizes[0], control="fixed")
    pair.bob.endpoint.config = EndpointConfig(mtu=sizes[1], control="fixed", idle_after=1 << 62)
    ours, theirs = pair.connect()
    least = min(sizes)
    target, region = expose(theirs, 20_000)
    back, own = expose(ours, 20_000)
    ours.post_write(pair.now, 1, b"a" * 20_000, region.address, region.rkey)
    theirs.post_write(pair.now, 2, b"b" * 20_000, own.address, own.rkey)
    theirs.post_read(pair.now, 3, bytearray(20_000), own.address, own.rkey)
    pair.drive()
    assert (outcome(pair.alice, ours), outcome(pair.bob, theirs)) == (
        [(1, "SUCCESS")], [(2, "SUCCESS"), (3, "SUCCESS")],
    )  # fmt: skip
    assert (target, back) == (b"a" * 20_000, b"b" * 20_000)
    assert max(packet.length for packet in data_packets(pair.sent)) == least
    assert ours.context.window == theirs.context.window
    assert ours.context.control.window >= least


def test_an_endpoint_refuses_an_mtu_above_its_nic():
    with pytest.raises(ConfigError, match="mtu = 4096: this Nic carries at most 1024"):
        Pair(mtu=4096, caps=replace(Pair(mtu=1024).alice.endpoint.caps, mtu=1024))

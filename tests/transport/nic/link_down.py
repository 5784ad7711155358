"""Two hosts with two real links each, one of which goes away midway: run by test_ports.py as a program, as root, inside
a network namespace of its own. It makes a second namespace for the other host; both end with the process.

Prints what happened; an assertion or a deadline ends it with another status.
"""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
from collections.abc import Callable

from transport.clock import SECOND
from transport.completion import Status
from transport.config import EndpointConfig
from transport.driver import Driver
from transport.endpoint import Endpoint
from transport.nic.dgram import SOCKETS
from transport.nic.ports import PortsNic
from transport.path import BAD, GOOD, PROBING
from transport.placement import Access

_CLONE_NEWNET = 0x40000000
PORTS = range(50001, 50005)
SIZE = 65536


class Hosts:
    """Host a lives in the namespace the program was started in, host b in a new one; link i joins their ports i."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.spaces = [os.open("/proc/self/ns/net", os.O_RDONLY)]
        self._check(self.libc.unshare(_CLONE_NEWNET))
        self.spaces.append(os.open("/proc/self/ns/net", os.O_RDONLY))
        for host in (0, 1):
            self.ip(host, "link set lo up")
        for link in (0, 1):
            self.join(link)

    def enter(self, host: int) -> None:
        """What is opened or started from now on is in that host's namespace."""
        self._check(self.libc.setns(self.spaces[host], _CLONE_NEWNET))

    def ip(self, host: int, command: str) -> None:
        self.enter(host)
        subprocess.run(["ip", *command.split()], check=True)

    def join(self, link: int) -> None:
        """Make link number `link` and give both ends their addresses."""
        self.ip(0, f"link add a{link} type veth peer name b{link} netns /proc/{os.getpid()}/fd/{self.spaces[1]}")
        for host, name in enumerate("ab"):
            self.ip(host, f"address add {address(host, link)}/24 dev {name}{link}")
            self.ip(host, f"link set {name}{link} up")

    def _check(self, result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), "namespace")


def address(host: int, link: int) -> str:
    return f"10.{link + 5}.0.{host + 1}"


class Stream:
    """Host a writes to host b all the time, four messages outstanding."""

    def __init__(self, hosts: Hosts, kind: str) -> None:
        self.drivers = []
        config = EndpointConfig(mtu=1024, entropies=tuple(PORTS), control="fixed")
        for host in (0, 1):
            hosts.enter(host)
            nic = PortsNic([SOCKETS[kind](address(host, link), PORTS, mtu=1024) for link in (0, 1)])
            self.drivers.append(Driver(Endpoint(config, nic.addresses, nic.caps, random.Random(host)), nic))
        self.near, far = (driver.endpoint for driver in self.drivers)
        now = self.drivers[0].now()
        self.connection = self.near.create_connection(self.near.protection_domain(), now)
        domain = far.protection_domain()
        other = far.create_connection(domain, now)
        self.buffer = bytearray(SIZE)
        self.memory = domain.register(self.buffer, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
        self.connection.connect(now, other.parameters)
        other.connect(now, self.connection.parameters)
        self.posted = self.completed = 0
        self.states: dict[tuple[int, int], int] = {}
        self.recovered: set[tuple[int, int]] = set()

    def run(self, what: str, reached: Callable[[], bool]) -> None:
        """Write until `reached`, and two messages more."""
        end = self.drivers[0].now() + 20 * SECOND
        rest = -1
        while rest < 0 or self.completed < rest:
            assert self.drivers[0].now() < end, f"{what}: 20 s are over, paths {self.states}"
            if rest < 0 and reached():
                rest = self.completed + 2
            while self.posted < self.completed + 4:
                self.posted += 1
                data = bytes([self.posted & 0xFF]) * SIZE
                self.connection.post_write(
                    self.drivers[0].now(), self.posted, data, self.memory.address, self.memory.rkey
                )
            for driver in self.drivers:
                for completion in driver.step(0):
                    assert completion.status == Status.SUCCESS, completion.error
                    self.completed += 1
            while (event := self.near.poll_event()) is not None:
                self.states[event.plane, event.entropy] = event.new
                if event.old == PROBING and event.new == GOOD:
                    self.recovered.add((event.plane, event.entropy))

    def sent(self, link: int) -> int:
        """Datagrams of host a that left by a link."""
        nic = self.drivers[0].nic
        assert isinstance(nic, PortsNic)
        return nic.port_counters()[link]["sent"]

    def all_bad(self) -> bool:
        return all(self.states.get((1, port)) == BAD for port in PORTS)

    def all_back(self) -> bool:
        return self.recovered == {(1, port) for port in PORTS}


def main(situation: str, kind: str) -> None:
    hosts = Hosts()
    stream = Stream(hosts, kind)
    stream.run("both links work", lambda: stream.completed >= 20)
    assert min(stream.sent(0), stream.sent(1)) > 50
    if situation == "interface down":
        hosts.ip(0, "link set a1 down")
    elif situation == "address removed":
        hosts.ip(0, f"address del {address(0, 1)}/24 dev a1")
    else:
        hosts.ip(0, "link del a1")
    stream.run("the other link takes over", stream.all_bad)
    assert all(stream.states.get((0, port), GOOD) != BAD for port in PORTS)
    lost = stream.drivers[0].nic.counters()["lost_down"]
    assert lost > 0
    if situation == "interface down":
        hosts.ip(0, "link set a1 up")
    elif situation == "address removed":
        hosts.ip(0, f"address add {address(0, 1)}/24 dev a1")
    else:
        hosts.join(1)
    stream.run("the link is used again", stream.all_back)
    before = stream.sent(1)
    stream.run("data on both links", lambda: stream.sent(1) > before + 50)
    for driver in stream.drivers:
        driver.close()
    print(f"{situation}: moved and came back, {stream.completed} messages, {lost} segments lost at the port")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

"""What the link behind an address carries: its MTU, and the largest segment that fits.

An address that no interface lists (most of 127.0.0.0/8) has no known link. A smaller MTU further along the way is not
seen from here: the kernel refuses the first datagram that is too long for it, and the Nic says so.
"""

from __future__ import annotations

import fcntl
import socket
import sys
from array import array
from pathlib import Path
from struct import Struct

from transport.errors import ConfigError
from transport.nic.base import VERBS_MTUS

#: Bytes of a data packet beside its payload, by the length of an address: IP, UDP, BTH, RETH, immediate, ICRC.
HEADERS = {4: 20 + 8 + 12 + 16 + 4 + 4, 16: 40 + 8 + 12 + 16 + 4 + 4}

# Of linux/sockios.h and linux/if.h: an ifreq is a name of 16 bytes and a union of 24 on 64-bit systems.
_SIOCGIFCONF = 0x8912
_SIOCGIFMTU = 0x8921
_IFCONF = Struct("iP")
_IFREQ_MTU = Struct("16si20x")
_IFREQ = 40
_ADDRESS_AT = 20
_MOST_INTERFACES = 4096
_IF_INET6 = Path("/proc/net/if_inet6")


def largest_payload(link_mtu: int, address: bytes) -> int:
    """The largest verbs MTU whose data packets fit into a link's MTU, 0 if none does. address: 4 or 16 bytes."""
    return max((mtu for mtu in VERBS_MTUS if mtu + HEADERS[len(address)] <= link_mtu), default=0)


def check_mtu(mtu: int, name: str, address: bytes) -> None:
    """ConfigError unless segments of `mtu` bytes fit into the link that `address`, called `name`, belongs to. Nothing
    is checked where that link is not known."""
    link_mtu = mtu_of(address)
    if link_mtu is not None and mtu > (most := largest_payload(link_mtu, address)):
        allowed = f"at most {most} is allowed" if most else "it is too small for any segment"
        raise ConfigError(f"mtu = {mtu}: the link of {name} has an MTU of {link_mtu}, {allowed}")


def mtu_of(address: bytes) -> int | None:
    """The MTU of the interface that has `address`, 4 or 16 bytes; None if no interface lists it, or not on Linux."""
    if sys.platform != "linux":
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        name = _interface6(address) if len(address) == 16 else _interface4(sock, address)
        if name is None:
            return None
        try:
            answer = fcntl.ioctl(sock, _SIOCGIFMTU, _IFREQ_MTU.pack(name, 0))
        except OSError:  # the interface has just gone: binding will say so
            return None
    return int(_IFREQ_MTU.unpack(answer)[1])


def _interface4(sock: socket.socket, address: bytes) -> bytes | None:
    room = array("b", bytes(_IFREQ * _MOST_INTERFACES))
    where, _ = room.buffer_info()
    answer = fcntl.ioctl(sock, _SIOCGIFCONF, _IFCONF.pack(len(room), where))
    listed = room.tobytes()[: _IFCONF.unpack(answer)[0]]
    for at in range(0, len(listed), _IFREQ):
        if listed[at + _ADDRESS_AT : at + _ADDRESS_AT + 4] == address:
            return listed[at : at + 16].partition(b"\0")[0]
    return None


def _interface6(address: bytes) -> bytes | None:
    try:
        lines = _IF_INET6.read_text(encoding="ascii").splitlines()
    except OSError:  # no IPv6 here
        return None
    for fields in map(str.split, lines):
        if fields and fields[0] == address.hex():
            return fields[-1].encode()
    return None

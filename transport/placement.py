"""Memory regions and the placement rules: validate, then place, in whatever order packets arrive.

The rules have ids (P1 to P9) in docs/placement.md, after RFC 5040 and RFC 5041; each is cited where it is kept and has
a conformance test of its name. Nothing here buffers payload: a byte goes from the Nic's buffer to its destination.
"""

from __future__ import annotations

from enum import IntFlag
from typing import TYPE_CHECKING

import cython

from transport.errors import ConfigError
from transport.packet import Packet
from transport.table import Table

if TYPE_CHECKING:
    import random

    from typing_extensions import Buffer


class Access(IntFlag):
    """Values of ibv_access_flags."""

    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4
    REMOTE_ATOMIC = 8


#: What a single-use key allows: the buffer of a posted receive or of a READ is written by the peer.
EXPOSED = int(Access.LOCAL_WRITE | Access.REMOTE_WRITE)

#: Messages and regions are at most this long.
MAX_LENGTH = 1 << 32

_PAGE = 4096


def as_view(buffer: Buffer, what: str) -> memoryview:
    """A flat view of bytes on any C-contiguous buffer; ConfigError otherwise."""
    try:
        view = memoryview(buffer)
    except (TypeError, ValueError, BufferError):
        raise ConfigError(
            f"{what} = {type(buffer).__name__}: a buffer, or a number of phantom bytes, is allowed"
        ) from None
    if "O" in view.format:
        raise ConfigError(f"{what} holds Python objects: numbers and bytes are allowed")
    if not view.c_contiguous:
        raise ConfigError(f"{what} is not C-contiguous")
    if not view.nbytes:
        return memoryview(b"")
    try:
        return view.cast("B")
    except (TypeError, ValueError):  # an element type that memoryview does not know; numpy shows its bytes itself
        if not hasattr(buffer, "reshape"):
            raise ConfigError(f"{what} has elements of format {view.format!r}: bytes are allowed") from None
        return memoryview(buffer.reshape(-1).view("u1"))


class MemoryRegion:
    """Registered memory: `length` bytes at the virtual `address`, open to peers that hold `rkey` as `access` says.

    view: its bytes, or None for phantom bytes, which are counted and go nowhere. connection: the only connection that
    may use it, 0 for any of the protection domain (single-use keys of posted receives and READs).
    """

    def __init__(
        self, domain: ProtectionDomain, view: memoryview | None, address: int, length: int, access: int, owner: int
    ) -> None:
        self.domain = domain
        self.view = view
        self.address = address
        self.length = length
        self.access = access
        self.owner = owner
        self.rkey = domain.table.add(self)

    def deregister(self) -> None:
        """Stop all remote access at once (rule P7). Packets still on their way are refused."""
        if self.rkey:
            self.domain.table.remove(self.rkey)
            self.rkey = 0
            self.view = None


class ProtectionDomain:
    """Holds the memory regions that its queue pairs may reach (rule P2). Its keys are random 32-bit numbers."""

    def __init__(self, rng: random.Random) -> None:
        self.table = Table(rng, 1 << 32)
        self.next_address = rng.randrange(1 << 16, 1 << 40) * _PAGE

    def register(self, buffer: Buffer | int, access: Access) -> MemoryRegion:
        """Register `buffer` (or that many phantom bytes) for `access`. Remote writes need LOCAL_WRITE too, as in the
        verbs."""
        if access & (Access.REMOTE_WRITE | Access.REMOTE_ATOMIC) and not access & Access.LOCAL_WRITE:
            raise ConfigError(f"access = {access!r}: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE")
        return self.expose(buffer, int(access), 0)

    def expose(self, buffer: Buffer | int, access: int, owner: int) -> MemoryRegion:
        """Register for one connection (`owner`, its QPN) or, with owner 0, for all of the domain."""
        view = None if isinstance(buffer, int) else as_view(buffer, "buffer")
        length = buffer if isinstance(buffer, int) else view.nbytes if view is not None else 0
        if not 0 <= length <= MAX_LENGTH:
            raise ConfigError(f"length = {length}: allowed are 0 to {MAX_LENGTH} bytes")
        if view is not None and view.readonly and length and access & ~Access.REMOTE_READ:
            raise ConfigError("buffer is read-only: only access REMOTE_READ is allowed")
        address = self.next_address
        self.next_address += (length // _PAGE + 2) * _PAGE
        return MemoryRegion(self, view, address, length, access, owner)

    def find(
        self,
        rkey: cython.longlong,
        address: cython.ulonglong,
        length: cython.longlong,
        access: cython.longlong,
        owner: cython.longlong,
    ) -> MemoryRegion | None:
        """The region, if `owner` may reach all of [address, address + length) in it with `access`; else None.

        The comparison never adds to `address`, so nothing wraps at 2**64 (rule P4).
        """
        region: MemoryRegion | None = self.table.get(rkey)
        if region is None:
            return None
        if region.access & access != access or (region.owner and region.owner != owner):
            return None
        if length > region.length or address < region.address or address - region.address > region.length - length:
            return None
        return region


def place(region: MemoryRegion, packet: Packet, index: cython.longlong) -> None:
    """Copy segment `index` of a run that was validated as a whole into `region`."""
    if region.view is None or packet.payload is None:
        return
    size: cython.longlong = packet.segment_length(index)
    start: cython.longlong = packet.address - region.address + index * packet.segment
    source: cython.longlong = packet.offset + index * packet.stride
    region.view[start : start + size] = memoryview(packet.payload)[source : source + size]


def place_run(region: MemoryRegion, packet: Packet) -> None:
    """Copy a whole run, at once where its segments lie side by side."""
    i: cython.longlong
    if region.view is None or packet.payload is None or packet.length == 0:
        return
    if packet.count == 1 or packet.stride == packet.segment:
        start: cython.longlong = packet.address - region.address
        region.view[start : start + packet.length] = memoryview(packet.payload)[
            packet.offset : packet.offset + packet.length
        ]
    else:
        for i in range(packet.count):
            place(region, packet, i)

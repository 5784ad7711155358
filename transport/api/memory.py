"""Memory: protection domains, registered regions and their slices, and what a peer needs to know of them.

Buffers are whatever has Python's buffer protocol: bytearray, mmap, numpy arrays of any shape. Nothing is copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from transport import placement
from transport.errors import ConfigError, LocalProtocolError, NegotiationError
from transport.placement import MAX_LENGTH, Access, as_view

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from transport.api.device import DeviceBase


@dataclass(frozen=True, slots=True)
class RemoteRegion:
    """Memory of a peer: `length` bytes at `address`, reached with `rkey`. Slices of it lie within."""

    address: int
    rkey: int
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> RemoteRegion:
        start, stop = bounds(part, self.length)
        return RemoteRegion(self.address + start, self.rkey, stop - start)

    def to_json(self) -> dict[str, int]:
        """Plain data that a peer's `from_json` takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> RemoteRegion:
        """NegotiationError names what is missing, unknown or out of range in a peer's description."""
        limits = {"address": 1 << 64, "rkey": 1 << 32, "length": MAX_LENGTH + 1}
        if not isinstance(data, Mapping) or data.keys() != limits.keys():
            raise NegotiationError(f"region = {data!r:.80}: an object with {', '.join(limits)} is allowed")
        for name, limit in limits.items():
            if type(data[name]) is not int or not 0 <= data[name] < limit:
                raise NegotiationError(f"region {name} = {data[name]!r:.40}: whole numbers below {limit} are allowed")
        return cls(**data)


class ProtectionDomain:
    """Memory regions and the queue pairs that peers may reach them through: those of the same domain, no others."""

    def __init__(self, device: DeviceBase) -> None:
        self.device = device
        self.domain = device.endpoint.protection_domain()


class MemorySlice:
    """`length` bytes of `region` from `offset` on; slices of it lie within. Made by slicing a MemoryRegion."""

    def __init__(self, region: MemoryRegion, offset: int, length: int) -> None:
        self.region = region
        self.offset = offset
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> MemorySlice:
        start, stop = bounds(part, self.length)
        return MemorySlice(self.region, self.offset + start, stop - start)

    @property
    def view(self) -> memoryview:
        """Its bytes, not a copy. LocalProtocolError after `close`."""
        view = self.region.registered.view
        if view is None:
            raise LocalProtocolError("memory region: it was closed")
        return view[self.offset : self.offset + self.length]

    @property
    def remote(self) -> RemoteRegion:
        """What a peer needs for READ, WRITE and atomics on it. LocalProtocolError after `close`."""
        registered = self.region.registered
        if not registered.rkey:
            raise LocalProtocolError("memory region: it was closed")
        return RemoteRegion(registered.address + self.offset, registered.rkey, self.length)


class MemoryRegion(MemorySlice):
    """A registered buffer; an int stands for a new bytearray of that length.

    The buffer must be C-contiguous, and writable unless `access` is REMOTE_READ alone; else ConfigError. REMOTE_WRITE
    and REMOTE_ATOMIC need LOCAL_WRITE. `close`, or the end of a `with`, ends all remote access at once: a peer's
    request that is still under way then fails.
    """

    def __init__(self, domain: ProtectionDomain, buffer: Buffer | int, access: Access) -> None:
        if isinstance(buffer, int):
            if not 0 <= buffer <= MAX_LENGTH:
                raise ConfigError(f"length = {buffer}: allowed are 0 to {MAX_LENGTH} bytes")
            buffer = bytearray(buffer)
        self.buffer = buffer
        self.access = access
        self.registered: placement.MemoryRegion = domain.domain.register(buffer, access)
        super().__init__(self, 0, self.registered.length)

    def close(self) -> None:
        """Deregister. Twice does no harm."""
        self.registered.deregister()

    def __enter__(self) -> MemoryRegion:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def bounds(part: Any, length: int) -> tuple[int, int]:
    """Start and stop of a slice that lies inside 0 to `length`. Nothing is clamped: ConfigError names both ends."""
    if not isinstance(part, slice) or part.step is not None:
        raise ConfigError(f"index = {part!r}: a slice without a step is allowed")
    start = 0 if part.start is None else part.start
    stop = length if part.stop is None else part.stop
    if not 0 <= start <= stop <= length:
        raise ConfigError(f"slice = {start}:{stop}: it must lie within 0:{length}")
    return start, stop


def local_bytes(local: MemorySlice | Buffer, name: str, *, written: bool = False) -> memoryview:
    """The bytes of a local argument. written: the peer's bytes will be put there."""
    if isinstance(local, MemorySlice):
        if written and not local.region.access & Access.LOCAL_WRITE:
            raise ConfigError(f"{name}: access = {local.region.access!r}: LOCAL_WRITE is needed")
        return local.view
    view = as_view(local, name)
    if written and view.readonly and view.nbytes:
        raise ConfigError(f"{name} is read-only: the peer's bytes are to be put there")
    return view

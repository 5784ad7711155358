"""What an endpoint is configured with, what it tells its peer, and how two of them agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from cc.base import Control
from transport import entropy, selectors
from transport.clock import MS, NEVER, Time
from transport.errors import ConfigError, NegotiationError
from transport.nic.base import VERBS_MTUS, NicCaps
from transport.wire import max_ack_bits, max_inline

PROTOCOL_VERSION = 3

#: Most addresses of an endpoint, which is most planes of a connection.
MAX_PLANES = 8

#: How a connection treats order and loss, and over how many paths it runs (docs/classic.md).
MULTIPATH = "multipath"
CLASSIC = "classic"
MODES = (MULTIPATH, CLASSIC)

#: Selector where nobody named one; classic has no other than `single`.
_SELECTORS = {MULTIPATH: "pot", CLASSIC: "single"}

#: Control where nobody named one and the Nic shows no CE marks, which the default needs (docs/congestion.md).
CONTROL_WITHOUT_ECN = "swift"

#: Reliable control packets that may be outstanding (docs/wire.md: the ACK's control bitmap has this many bits).
CONTROL_WINDOW = 128


def _check(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{name} = {value!r}: allowed are whole numbers from {low} to {high}")


@dataclass(frozen=True)
class EndpointConfig:
    """Configuration of an endpoint. Out of range values raise ConfigError.

    mtu: payload bytes of a segment, a verbs MTU. max_run: segments of one send on one path (1 = spray per packet).
    mode: "multipath", or "classic" for one path, an in-order receiver and go-back-N (docs/classic.md); both sides need
    the same. paths: source ports to spray over, on each plane; entropies: these instead of automatic ones;
    entropy_mask: those that the bits of this mask enumerate from 0xC000 on (transport/entropy.py). floor: paths that
    stay usable whatever happens, at most one plane's, 0 for a quarter of these. selector, control, control_parameters:
    policy by name; no selector is "pot", in classic mode "single". window: data segments that may be outstanding.
    sq_depth, rq_depth: work requests. max_rd_atomic: READs and atomics outstanding. inline: largest SEND that travels
    inside its message, bytes. retries: timeouts in a row, backing off, before giving up. rto_min: least retransmission
    timeout in picoseconds, 0 for 25 ms in real time and 20 base RTTs in virtual time. ack_every: bytes that ask for an
    acknowledgement. idle_after: picoseconds without request or packet after which an idle connection gives its queues
    back, 0 for two retransmission timeouts, NEVER to keep them. icrc: whether bytes carry a checksum.
    """

    mtu: int = 4096
    max_run: int = 1
    paths: int = 16
    entropies: tuple[int, ...] | None = None
    entropy_mask: int | None = None
    floor: int = 0
    mode: str = MULTIPATH
    selector: str | None = None
    control: str | type[Control] = "dctcp"
    control_parameters: Mapping[str, object] = field(default_factory=dict)
    window: int = 2048
    sq_depth: int = 1024
    rq_depth: int = 1024
    max_rd_atomic: int = 16
    inline: int = 256
    retries: int = 7
    rto_min: Time = 0
    ack_every: int = 16384
    idle_after: Time = 0
    icrc: bool = True

    def __post_init__(self) -> None:
        if type(self.mtu) is not int or self.mtu not in VERBS_MTUS:
            raise ConfigError(f"mtu = {self.mtu!r}: allowed are the verbs MTUs {', '.join(map(str, VERBS_MTUS))}")
        count = len(self.ports())
        _check("max_run", self.max_run, 1, 1024)
        _check("floor", self.floor, 0, count)
        _check("window", self.window, 16, 32768)
        _check("sq_depth", self.sq_depth, 1, 1 << 20)
        _check("rq_depth", self.rq_depth, 1, 1 << 20)
        _check("max_rd_atomic", self.max_rd_atomic, 1, 64)
        _check("inline", self.inline, 0, 256)
        _check("retries", self.retries, 1, 64)
        _check("rto_min", self.rto_min, 0, 60_000 * MS)
        _check("ack_every", self.ack_every, 1, 1 << 24)
        _check("idle_after", self.idle_after, 0, NEVER)
        if type(self.icrc) is not bool:
            raise ConfigError(f"icrc = {self.icrc!r}: allowed are True and False")
        if not isinstance(self.control, str) and not (
            isinstance(self.control, type) and issubclass(self.control, Control)
        ):
            raise ConfigError(f"control = {self.control!r}: a name, or a subclass of cc.base.Control, is allowed")
        if self.mode not in MODES:
            raise ConfigError(f"mode = {self.mode!r}: allowed are {', '.join(MODES)}")
        selectors.check(self.path_selector)
        if self.mode == CLASSIC and self.path_selector != _SELECTORS[CLASSIC]:
            raise ConfigError(
                f"selector = {self.selector!r}: mode = {CLASSIC!r} keeps a queue pair on one path, "
                f"only {_SELECTORS[CLASSIC]!r} is allowed"
            )
        if self.mode == CLASSIC and self.floor:
            raise ConfigError(f"floor = {self.floor}: mode = {CLASSIC!r} never leaves a path, only 0 is allowed")

    @property
    def path_selector(self) -> str:
        """The selector by name: the one that is configured, or that of the mode."""
        return _SELECTORS[self.mode] if self.selector is None else self.selector

    def ports(self) -> list[int]:
        """The source ports to spray over, the same on each plane. Automatic ones are the same at every endpoint, so
        that an answer can leave by the port its question came by without a socket more."""
        if self.entropies is not None and self.entropy_mask is not None:
            raise ConfigError("entropies and entropy_mask: only one of the two is allowed")
        if self.entropies is not None:
            return entropy.explicit(self.entropies)
        if self.entropy_mask is not None:
            return entropy.generated(self.entropy_mask)
        return entropy.automatic(self.paths)

    def least_rto(self, caps: NicCaps) -> Time:
        """The least retransmission timeout on this Nic, picoseconds."""
        if self.rto_min:
            return self.rto_min
        return 20 * caps.base_rtt if caps.virtual_time else 25 * MS


@dataclass(frozen=True, slots=True)
class ConnectionParameters:
    """What a peer must know to talk to one connection; travels as JSON at bootstrap.

    addresses: IP addresses by plane, each as hex of its 4 or 16 bytes. tag: verification tag this side expects in
    control payloads. dsn, csn: first sequence numbers this side sends.
    """

    version: int
    addresses: tuple[str, ...]
    qpn: int
    tag: int
    dsn: int
    csn: int
    mtu: int
    window: int
    max_rd_atomic: int
    inline: int
    icrc: str
    control: str
    mode: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ConnectionParameters:
        """Parameters from a peer's JSON. NegotiationError names what is missing, unknown, or not of its type and
        range."""
        if not isinstance(data, Mapping):
            raise NegotiationError(f"parameters = {data!r:.80}: an object is allowed")
        known = {item.name: item for item in fields(cls)}
        for name in data:
            if name not in known:
                raise NegotiationError(f"parameter {name:.80} = {data[name]!r:.80} is unknown here: refused")
        for name, item in known.items():
            if name not in data:
                raise NegotiationError(f"parameter {name} is missing")
            value = data[name]
            if item.type == "int":
                if type(value) is not int or not 0 <= value < 1 << 32:
                    raise NegotiationError(f"parameter {name} = {value!r:.80}: a whole number of 32 bits is allowed")
            elif item.type == "str":
                if type(value) is not str:
                    raise NegotiationError(f"parameter {name} = {value!r:.80}: a text is allowed")
            elif (
                not isinstance(value, (list, tuple))
                or not 1 <= len(value) <= MAX_PLANES
                or any(type(part) is not str for part in value)
            ):
                raise NegotiationError(f"parameter {name} = {value!r:.80}: 1 to {MAX_PLANES} texts are allowed")
        return cls(**{**data, "addresses": tuple(data["addresses"])})


@dataclass(frozen=True)
class Agreement:
    """What two sides agreed on: the smaller of each limit."""

    mtu: int
    window: int
    max_rd_atomic: int
    inline: int


def _check_addresses(ours: tuple[str, ...], theirs: tuple[str, ...]) -> None:
    """Plane i runs from our address i to the peer's address i, so both sides must have as many. Which planes a shorter
    list leaves out is not known, hence no smaller number is agreed on."""
    if len(theirs) != len(ours):
        raise NegotiationError(f"addresses: {len(ours)} here, {len(theirs)} at the peer: each needs a partner")
    found = []
    for address in theirs:
        try:
            found.append(bytes.fromhex(address))
        except ValueError:
            raise NegotiationError(f"addresses: {address!r:.80} at the peer is not hexadecimal") from None
        if len(found[-1]) not in (4, 16) or len(address) != len(ours[0]):
            raise NegotiationError(f"addresses: {address!r:.80} at the peer, {ours[0]!r} here: one family is needed")
    if len(set(found)) != len(found):
        raise NegotiationError(f"addresses: {', '.join(theirs)} at the peer: one is there twice")


def negotiate(local: ConnectionParameters, remote: ConnectionParameters) -> Agreement:
    """Agree or raise NegotiationError naming the parameter and both values. Nothing is guessed."""
    for name in ("version", "icrc", "mode"):
        ours, theirs = getattr(local, name), getattr(remote, name)
        if ours != theirs:
            raise NegotiationError(f"{name}: {ours!r} here, {theirs!r:.80} at the peer: both sides must have the same")
    if remote.mtu not in VERBS_MTUS:
        raise NegotiationError(f"mtu: {remote.mtu} at the peer is no verbs MTU")
    _check_addresses(local.addresses, remote.addresses)
    for name, limit in (("qpn", 1 << 24), ("window", 1 << 16), ("max_rd_atomic", 1 << 8), ("inline", 257)):
        if getattr(remote, name) >= limit:
            raise NegotiationError(f"{name}: {getattr(remote, name)} at the peer is above {limit - 1}")
    if remote.qpn < 2:
        raise NegotiationError(f"qpn: {remote.qpn} at the peer is a special queue pair")
    if remote.window < 16 or remote.max_rd_atomic < 1:
        raise NegotiationError(
            f"window: {remote.window}, max_rd_atomic: {remote.max_rd_atomic} at the peer is too small"
        )
    mtu = min(local.mtu, remote.mtu)
    # The ACK's bitmaps must span a whole window and the history behind it.
    window = min(local.window, remote.window, max_ack_bits(mtu) * 2 // 3)
    return Agreement(
        mtu, window, min(local.max_rd_atomic, remote.max_rd_atomic), min(local.inline, remote.inline, max_inline(mtu))
    )

"""What a measurement is to do, as both sides know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from cc import registry
from cc.errors import ControlError
from testbed.units import parse_size, show_size
from transport.config import CONTROL_WITHOUT_ECN, EndpointConfig
from transport.errors import ConfigError, NegotiationError
from transport.nic.dgram import SOCKETS

OPERATIONS = ("write", "write_imm", "send", "read")

#: Sizes of `--size all`, bytes.
ALL = tuple(1 << power for power in range(1, 24))

#: Largest message: both ends keep a buffer of it for each queue pair.
MAX_SIZE = 1 << 30

#: Bytes outstanding on all queue pairs that keep the pipeline full, and messages on one that are enough for small ones.
_FULL = 16 << 20
_MAX_DEPTH = 128


@dataclass(frozen=True)
class Plan:
    """sizes: bytes of a message, measured one after the other for `duration` seconds each. depth: messages outstanding
    on a queue pair, 0 for as many as fill the pipeline. The rest configures both endpoints; cc only the client's."""

    op: str = "write"
    sizes: tuple[int, ...] = (65536,)
    duration: float = 2.0
    qps: int = 1
    paths: int = 16
    selector: str = EndpointConfig().path_selector
    cc: str = str(EndpointConfig.control)
    mtu: int = 4096
    icrc: bool = True
    latency: bool = False
    depth: int = 0
    max_run: int = 16
    seed: int = 1
    nic: str = "udp"

    @classmethod
    def make(
        cls, size: str, duration: float | None, latency: bool, op: str, cc: str | None = None, nic: str = "udp",
        **rest: Any,
    ) -> Plan:  # fmt: skip
        """A plan out of what was given on the command line, cc by the Nic if none was; ConfigError names what is not
        allowed."""
        one = size or ("64" if latency else "64KiB")
        sizes = ALL if one == "all" else (parse_size(one, "--size"),)
        if duration is None:
            duration = 0.5 if len(sizes) > 1 else 2.0
        if cc is None:
            cc = CONTROL_WITHOUT_ECN if nic == "dgram" else cls.cc
        plan = cls(
            op="write_imm" if latency else op, sizes=sizes, duration=duration, latency=latency, cc=cc, nic=nic, **rest
        )
        if op not in OPERATIONS:
            raise ConfigError(f"--op {op}: allowed are {', '.join(OPERATIONS)}")
        plan.check()
        return plan

    def check(self) -> None:
        """ConfigError for what no endpoint can do."""
        if self.op not in OPERATIONS:
            raise ConfigError(f"op = {self.op!r}: allowed are {', '.join(OPERATIONS)}")
        for size in self.sizes:
            if not 1 <= size <= MAX_SIZE:
                raise ConfigError(f"size = {size}: allowed are 1 to {show_size(MAX_SIZE)}")
        for name, value, low, high in (
            ("duration", self.duration, 0.01, 3600), ("qps", self.qps, 1, 1024), ("depth", self.depth, 0, 1024),
        ):  # fmt: skip
            if not low <= value <= high:
                raise ConfigError(f"{name} = {value}: allowed are {low} to {high}")
        if self.nic not in SOCKETS:
            raise ConfigError(f"nic = {self.nic!r}: allowed are {', '.join(SOCKETS)}")
        if self.latency and self.qps != 1:
            raise ConfigError(f"qps = {self.qps}: latency is measured on 1")
        self.config()

    def config(self) -> EndpointConfig:
        try:
            registry.resolve(self.cc)
        except ControlError as error:
            raise ConfigError(f"cc = {self.cc!r}: {error}") from None
        return EndpointConfig(
            mtu=self.mtu, max_run=self.max_run, paths=self.paths, selector=self.selector, control=self.cc,
            icrc=self.icrc, inline=256,
        )  # fmt: skip

    def outstanding(self, size: int) -> int:
        """Messages of that size to keep outstanding on each queue pair."""
        return self.depth or max(2, min(_MAX_DEPTH, _FULL // (size * self.qps)))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any], cc: str) -> Plan:
        """The client's plan with this side's own control. NegotiationError names what is unknown or not of its type."""
        known = {item.name: item for item in fields(cls)}
        for name, value in data.items():
            if name not in known:
                raise NegotiationError(f"plan: {name} = {value!r} is unknown here")
            wanted = known[name].default
            if name == "sizes":
                fine = isinstance(value, list) and all(type(size) is int for size in value)
            else:
                fine = type(value) is type(wanted) or (name == "duration" and type(value) is int)
            if not fine:
                raise NegotiationError(f"plan: {name} = {value!r} is not allowed")
        missing = sorted(known.keys() - data.keys())
        if missing:
            raise NegotiationError(f"plan: {', '.join(missing)} missing")
        try:
            plan = cls(**{**data, "sizes": tuple(data["sizes"]), "cc": cc})
            plan.check()
        except ConfigError as error:
            raise NegotiationError(f"plan: {error}") from None
        return plan

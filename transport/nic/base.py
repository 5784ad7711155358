"""What a network looks like to the transport."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from transport.clock import Time
from transport.packet import Packet

#: Payload sizes a verbs path MTU can have (InfiniBand spec, ibv_mtu).
VERBS_MTUS = (256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True)
class NicCaps:
    """What a Nic can do.

    mtu: payload bytes of one segment. max_run: segments one Packet may stand for. max_entropies: how many source
    ports it can send from at once. ecn: CE marks are seen by the receiver. int_telemetry: packets carry in-band
    telemetry. priorities: CLASS_CONTROL overtakes CLASS_DATA. places_payload: the NIC places data itself and shows
    only completions. virtual_time: `wait` moves the clock instead of sleeping. rate: line rate in bits per second and
    base_rtt: round trip of an idle network in picoseconds, both a starting point for congestion control, not a promise.
    """

    mtu: int
    max_run: int
    max_entropies: int
    ecn: bool
    rate: int
    base_rtt: Time
    priorities: bool = False
    int_telemetry: bool = False
    places_payload: bool = False
    virtual_time: bool = False


class Nic(Protocol):
    """Moves Packets. `send` never loses what it did not take, `receive` never blocks, `wait` never returns late."""

    caps: NicCaps
    address: bytes  #: own IP address, 4 or 16 bytes

    def now(self) -> Time:
        """The clock every timestamp of this Nic is read from."""

    def send(self, packets: Sequence[Packet]) -> int:
        """Send in order; return how many were taken. The rest stay with the caller: backpressure, never loss."""

    def receive(self, limit: int) -> list[Packet]:
        """At most about `limit` packets that have arrived. Payloads are valid until the next call."""

    def wait(self, until: Time | None) -> None:
        """Return when something may have arrived, or at `until`. None waits for arrival only."""

    def close(self) -> None:
        """Release everything. Further calls are errors."""

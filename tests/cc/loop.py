"""A closed loop around controls: senders with one bottleneck, as a fluid. No packets, no losses, one delay for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cc.base import Control, Environment
from cc.signals import AckSignal

US = 1_000_000
PARTS = 8  #: acknowledgements a control gets per round trip


@dataclass
class Bottleneck:
    """rate: bits per second; base_rtt: picoseconds; mark_above: bytes of queue above which every byte is marked."""

    rate: int = 100_000_000_000
    base_rtt: int = 12 * US
    mark_above: float | None = None

    @property
    def bytes_per_time(self) -> float:
        return self.rate / 8 / 1e12

    @property
    def bdp(self) -> float:
        return self.bytes_per_time * self.base_rtt


@dataclass
class Round:
    """One round trip: its delay in picoseconds, queue in bytes, and every sender's bytes in flight."""

    delay: int
    queue: float
    shares: list[float]


def environment(link: Bottleneck, segment: int = 4096, now: int = 123_456_789) -> Environment:
    return Environment(segment, link.rate, link.base_rtt, 8 << 20, now)


def drive(
    controls: list[Control],
    link: Bottleneck,
    rounds: int,
    now: int = 123_456_789,
    delay_of: Callable[[int], int] | None = None,
) -> list[Round]:
    """`rounds` round trips of all `controls`, which always have more to send. delay_of(round): a delay that does not
    depend on the senders, in place of the queue's."""
    history = []
    delay = link.base_rtt
    for number in range(rounds):
        shares = [float(c.window) if c.rate == 0 else min(c.window, c.rate / 8e12 * delay) for c in controls]
        queue = max(0.0, sum(shares) - link.bdp)
        delay = delay_of(number) if delay_of else int(link.base_rtt + queue / link.bytes_per_time)
        marked = link.mark_above is not None and queue > link.mark_above
        for _ in range(PARTS):
            now += delay // PARTS
            for control, share in zip(controls, shares, strict=True):
                control.on_ack(now, ack(int(share / PARTS), rtt=delay, in_flight=int(share), marked=marked))
        history.append(Round(delay, queue, shares))
    return history


def ack(size: int, *, rtt: int = -1, median: int = -1, in_flight: int = 0, marked: bool = False) -> AckSignal:
    """An acknowledgement of `size` bytes to a sender with more to send."""
    signal = AckSignal()
    signal.acked_bytes = size
    signal.acked_packets = 1
    signal.rtt = rtt
    signal.median_rtt = median
    signal.in_flight = in_flight
    signal.marked_bytes = size if marked else 0
    signal.marked_packets = 1 if marked else 0
    signal.window_limited = True
    return signal

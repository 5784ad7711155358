"""The interface of a congestion control: policy only.

The engine owns the bytes in flight, the clock and the timers. It calls a control with what happened and afterwards
reads two public attributes, both integers:

    window   bytes that may be outstanding, from one segment to env.max_window
    rate     bits per second to pace at, 0 for no pacing

A window below one segment is a window of one segment with a rate. A subclass in a plain Python file plugs in
unchanged; see docs/congestion.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import cython

from cc.errors import ControlError
from cc.parameters import Parameters as Parameters
from cc.parameters import parameter as parameter
from cc.signals import AckSignal, LossSignal

#: What a control may need and not every Nic gives.
SIGNALS = frozenset({"ecn", "int_telemetry"})


@dataclass(frozen=True, slots=True)
class Environment:
    """What a control may know when a connection starts. It never learns how many senders there are.

    segment: payload bytes of a full packet. rate: line rate, bits per second. base_rtt: round trip of an idle network,
    picoseconds. max_window: bytes that the engine will ever let out. now: picoseconds; only differences to it mean
    anything. Raises ControlError unless 1 <= segment <= max_window, rate >= 1 and base_rtt >= 1.
    """

    segment: int
    rate: int
    base_rtt: int
    max_window: int
    now: int = 0

    def __post_init__(self) -> None:
        if not (1 <= self.segment <= self.max_window and self.rate >= 1 and self.base_rtt >= 1):
            raise ControlError(f"{self} is not allowed: 1 <= segment <= max_window, rate >= 1, base_rtt >= 1")

    @property
    def bdp(self) -> int:
        """Bandwidth-delay product in bytes, at least one segment."""
        return max(self.segment, int(self.rate / 8 * self.base_rtt / 1e12))


class Control:
    """Base class; by itself it leaves window and rate alone.

    Class attributes: `name` as in the registry, `source` (paper, section, or specification), `summary` in a line,
    `needs` (of SIGNALS, the NicCaps fields that must be true), `credits` (the receiver grants what is sent; such a
    control has CreditParameters), `Parameters` (the dataclass of parameters).

    A subclass calls super().__init__ first: window becomes one bandwidth-delay product, rate 0. It compares times only
    with env.now and with each other.
    """

    name = ""
    source = ""
    summary = ""
    needs: ClassVar[frozenset[str]] = frozenset()
    credits: ClassVar[bool] = False
    Parameters: ClassVar[type[Parameters]] = Parameters

    def __init__(self, parameters: Any, env: Environment) -> None:
        self.window = min(env.max_window, env.bdp)
        self.rate = 0

    def on_ack(self, now: cython.longlong, ack: AckSignal) -> None:
        """Something new was acknowledged."""

    def on_loss(self, now: cython.longlong, loss: LossSignal) -> None:
        """Packets were declared lost; called once for each send that one event declared."""

    def on_timeout(self, now: cython.longlong) -> None:
        """The retransmission timer expired: everything outstanding counts as lost."""

    def on_idle(self, now: cython.longlong, idle: cython.longlong) -> None:
        """Sending resumes after `idle` picoseconds without anything outstanding."""

    def on_path_change(self, now: cython.longlong) -> None:
        """The set of usable paths changed: delay history may be of paths no longer used."""

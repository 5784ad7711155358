"""The interface of a congestion control: policy only.

The engine owns the bytes in flight, the clock and the timers. It calls a control with what happened and afterwards
reads two public attributes:

    window   bytes that may be outstanding, at least one segment
    rate     bits per second to pace at, 0 for no pacing

A subclass in a plain Python file plugs in unchanged; see docs/congestion.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import cython

from cc.signals import AckSignal, LossSignal


@dataclass(frozen=True, slots=True)
class Environment:
    """What a control may know when a connection starts. It never learns how many senders there are.

    segment: payload bytes of a full packet. rate: line rate, bits per second. base_rtt: round trip of an idle network,
    picoseconds. max_window: bytes that the engine will ever let out. now: picoseconds; only differences to it mean
    anything.
    """

    segment: int
    rate: int
    base_rtt: int
    max_window: int
    now: int = 0

    @property
    def bdp(self) -> int:
        """Bandwidth-delay product in bytes, at least one segment."""
        return max(self.segment, int(self.rate / 8 * self.base_rtt / 1e12))


def parameter(default: float | int | bool, low: float, high: float, unit: str, meaning: str) -> Any:
    """A field of a parameter dataclass: its default, allowed range, unit and meaning."""
    return field(default=default, metadata={"low": low, "high": high, "unit": unit, "meaning": meaning})


@dataclass(frozen=True)
class Parameters:
    """Base of every control's declared parameters. Values out of range are refused with name, value and range."""

    def __post_init__(self) -> None:
        from cc.registry import check_parameters

        check_parameters(self)


class Control:
    """Base class; by itself it leaves window and rate alone.

    Class attributes: `name` as in the registry, `source` (paper, section, or specification), `summary` in a line,
    `needs` (NicCaps fields that must be true, "ecn" or "int_telemetry"), `Parameters` (the dataclass of parameters).
    """

    name = ""
    source = ""
    summary = ""
    needs: ClassVar[frozenset[str]] = frozenset()
    Parameters: ClassVar[type[Parameters]] = Parameters

    def __init__(self, parameters: Any, env: Environment) -> None:
        self.window = min(env.max_window, env.bdp)
        self.rate = 0

    def on_ack(self, now: cython.longlong, ack: AckSignal) -> None:
        """Something new was acknowledged."""

    def on_loss(self, now: cython.longlong, loss: LossSignal) -> None:
        """Packets were declared lost; called once for all that one event declared."""

    def on_timeout(self, now: cython.longlong) -> None:
        """The retransmission timer expired: everything outstanding counts as lost."""

    def on_idle(self, now: cython.longlong, idle: cython.longlong) -> None:
        """Sending resumes after `idle` picoseconds without anything outstanding."""

    def on_path_change(self, now: cython.longlong) -> None:
        """The set of usable paths changed: delay history may be of paths no longer used."""


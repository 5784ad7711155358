"""A workload is data: a list of messages for each phase, independent of how ranks run and of what carries them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from testbed.units import MAX_SIZE
from transport.clock import NEVER, Time
from transport.errors import ConfigError

#: What a message may be posted as. Bytes always go from `src` to `dst`; a READ is posted by `dst`, the rest by `src`.
OPERATIONS = ("write", "write_imm", "send", "read")

Bytes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Message:
    """`size` bytes from rank `src` to rank `dst`.

    start: picoseconds from the start of the phase before which it is not posted. after: places in the phase's messages
    of those that must be complete at their poster before it is posted.
    """

    src: int
    dst: int
    size: int
    op: str = "write_imm"
    start: Time = 0
    after: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.after, tuple):  # JSON has only lists
            object.__setattr__(self, "after", tuple(self.after))

    @property
    def poster(self) -> int:
        return self.dst if self.op == "read" else self.src

    @property
    def wakes(self) -> bool:
        """Whether the peer of the poster gets a completion too, for which it posts a receive."""
        return self.op in ("write_imm", "send")


@dataclass(frozen=True)
class Phase:
    """Messages that may all be under way at once; the next phase begins when all of them are in.

    depth: how many messages a poster keeps outstanding to one peer. interval: picoseconds from one message to the next
    that a poster at least lets pass for each peer, 0 for as fast as depth allows.
    """

    name: str
    messages: tuple[Message, ...]
    depth: int = 16
    interval: Time = 0

    @property
    def logical_bytes(self) -> int:
        return sum(message.size for message in self.messages)


@dataclass(frozen=True)
class Workload:
    """Phases over `ranks` ranks, numbered from 0. notes: lines about it for the report."""

    ranks: int
    phases: tuple[Phase, ...]
    notes: tuple[str, ...] = field(default=())


def runnable(workload: Workload) -> Workload:
    """The workload without phases in which nobody sends. ConfigError if none is left, if a message is too long, or if
    one could never be posted."""
    longest = max((m.size for phase in workload.phases for m in phase.messages), default=0)
    if longest > MAX_SIZE:
        raise ConfigError(f"workload: its longest message has {longest} B: allowed are at most {MAX_SIZE}")
    phases = tuple(phase for phase in workload.phases if phase.messages)
    if not phases:
        raise ConfigError("workload: no rank has anything to send to another")
    for phase in phases:
        _check_order(phase)
    return replace(workload, phases=phases)


def _check_order(phase: Phase) -> None:
    """ConfigError for a `start` or `after` that is out of range, and for messages that wait for each other in a circle.

    Messages that share one tuple as their `after`, as those behind a barrier do, are looked at together.
    """
    place = f"workload: phase {phase.name!r}"
    gates: dict[int, list[int]] = {}
    for i, message in enumerate(phase.messages):
        if not 0 <= message.start < NEVER:
            raise ConfigError(f"{place}, message {i}: start = {message.start}: allowed are 0 to {NEVER - 1} ps")
        if message.after:
            gates.setdefault(id(message.after), []).append(i)
    opens: dict[int, list[int]] = {}
    closed = {}
    for key, waiting in gates.items():
        awaited = set(phase.messages[waiting[0]].after)
        for j in (min(awaited), max(awaited)):
            if not 0 <= j < len(phase.messages):
                raise ConfigError(
                    f"{place}, message {waiting[0]}: after = {j}: allowed are 0 to {len(phase.messages) - 1}"
                )
        closed[key] = len(awaited)
        for j in awaited:
            opens.setdefault(j, []).append(key)
    done = [i for i, message in enumerate(phase.messages) if not message.after]
    for i in done:  # grows while it is walked
        for key in opens.get(i, ()):
            closed[key] -= 1
            if not closed[key]:
                done += gates[key]
    if len(done) < len(phase.messages):
        stuck = min(set(range(len(phase.messages))) - set(done))
        raise ConfigError(f"{place}, message {stuck}: after: it waits for itself, or for one that does")


def received_by(messages: Iterable[Message], ranks: int) -> Bytes:
    """Bytes that arrive at each rank."""
    total = np.zeros(ranks, dtype=np.int64)
    for message in messages:
        total[message.dst] += message.size
    return total


def sent_by(messages: Iterable[Message], ranks: int) -> Bytes:
    """Bytes that leave each rank."""
    total = np.zeros(ranks, dtype=np.int64)
    for message in messages:
        total[message.src] += message.size
    return total


def payload(seed: int, phase: int, src: int, dst: int, size: int) -> bytes:
    """All bytes that `src` sends to `dst` in a phase, one message after the other: pseudo-random, and different for
    every seed, phase and pair, so that a byte in the wrong place does not go unnoticed."""
    key = np.array([seed & (2**64 - 1), phase << 40 | src << 20 | dst], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).bytes(size)

"""Messages that wait for others, of any rank: for networks whose ranks all live in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from testbed.rank import Rank
from testbed.workloads.base import Phase
from transport.clock import Time
from transport.errors import ConfigError


class Gates:
    """Of one phase. Tells the ranks what they may post when what it waits for is complete. wake: called with the number
    of a rank that has posted something so."""

    def __init__(
        self, phase: Phase, ranks: Sequence[Rank], wake: Callable[[int, Time], None] = lambda number, now: None
    ) -> None:
        self._phase = phase
        self._ranks = ranks
        self._wake = wake
        # Messages behind one barrier share their `after`, and are opened together.
        behind: dict[tuple[int, ...], list[int]] = {}
        for place, message in enumerate(phase.messages):
            if message.after:
                behind.setdefault(message.after, []).append(place)
        self._left = [(len(set(after)), places) for after, places in behind.items()]
        self._opens: dict[int, list[int]] = {}
        for gate, after in enumerate(behind):
            for place in set(after):
                self._opens.setdefault(place, []).append(gate)
        for rank in ranks:
            rank.announce = self._completed if behind else None

    def _completed(self, place: int, now: Time) -> None:
        for gate in self._opens.pop(place, ()):
            left, places = self._left[gate]
            self._left[gate] = (left - 1, places)
            if left == 1:
                for opened in places:
                    number = self._phase.messages[opened].poster
                    self._ranks[number].release(opened, now)
                    self._wake(number, now)


def check(phases: Sequence[Phase], together: bool) -> None:
    """ConfigError for messages that wait where nobody could tell them, or in an order that their receiver cannot know.
    together: all ranks live in this process."""
    for phase in phases:
        pairs: dict[tuple[int, int], int] = {}
        for message in phase.messages:
            pairs[message.src, message.dst] = pairs.get((message.src, message.dst), 0) + 1
        for message in phase.messages:
            if message.after and not together:
                raise ConfigError(
                    f"workload: messages of phase {phase.name!r} wait for others of other ranks: only loopback and sim "
                    "are allowed"
                )
            if message.after and message.wakes and pairs[message.src, message.dst] > 1:
                raise ConfigError(
                    f"workload: op = {message.op!r} from rank {message.src} to {message.dst} in phase {phase.name!r}: "
                    "several messages of a pair may wait for others only as write or read"
                )

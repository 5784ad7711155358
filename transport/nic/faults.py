"""Seeded faults on what a Nic sends: loss, corruption, duplicates, delay, reordering, CE marks, dead paths and planes.

A fault hits single segments; what happens to neighbouring segments of a run alike leaves as one run. Every random
number comes from one seeded generator, so in virtual time the same calls give the same faults. Each direction has its
own FaultInjector, at its sender. Delayed packets are copied and held here until their time has come; `wait` returns for
them, and a virtual clock stops for them (Wrapper.alarm, Wrapper.next_event).

Corruption means a flipped payload bit, which the ICRC catches: the receiver would drop the packet as one with a bad
ICRC. Records have no bits to flip and no ICRC, so a corrupted segment is dropped and counted here, on every Nic. What
software behind an ICRC that is off would make of such bytes is not modelled.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from transport.clock import NEVER, US, Time
from transport.errors import ConfigError
from transport.nic.base import Nic
from transport.nic.wrapper import Wrapper
from transport.packet import CE, CNP, CONTROL, DATA, DATAGRAM, NOT_ECT, Packet

#: In place of a source port: all of them.
ANY = -1

#: How long to wait at most for a Nic that did not take everything, picoseconds.
_RETRY = 100 * US


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong. Numbers without a unit are probabilities for each segment; ConfigError names a bad one.

    loss: dropped. corrupt: dropped as one with a bad ICRC. duplicate: sent twice. mark: marked CE, if ECN-capable.
    delay_ps: added to all; jitter_ps: up to this much more, uniform and independent, so that packets overtake each
    other. reorder: held back by reorder_ps. entropy_delay: (source port, picoseconds) more for one path.
    entropy_mark: (source port, probability) of a mark, instead of `mark`. blackhole: (source port, start, end): all of
    a path, or ANY, is dropped from start until before end; with a fourth part, a source address, on that plane only.
    kinds: which kinds of packets any of this touches.
    """

    loss: float = 0.0
    corrupt: float = 0.0
    duplicate: float = 0.0
    mark: float = 0.0
    delay_ps: Time = 0
    jitter_ps: Time = 0
    reorder: float = 0.0
    reorder_ps: Time = 100 * US
    entropy_delay: tuple[tuple[int, Time], ...] = ()
    entropy_mark: tuple[tuple[int, float], ...] = ()
    blackhole: tuple[tuple[int, Time, Time] | tuple[int, Time, Time, bytes], ...] = ()
    kinds: tuple[int, ...] = (DATA, CONTROL, DATAGRAM, CNP)

    def __post_init__(self) -> None:
        for name in ("loss", "corrupt", "duplicate", "mark", "reorder"):
            _check_probability(name, getattr(self, name))
        for name in ("delay_ps", "jitter_ps", "reorder_ps"):
            _check_time(name, getattr(self, name))
        for name, sizes in (("entropy_delay", (2,)), ("entropy_mark", (2,)), ("blackhole", (3, 4))):
            for item in getattr(self, name):
                if not isinstance(item, (tuple, list)) or len(item) not in sizes:
                    size = " or ".join(map(str, sizes))
                    raise ConfigError(f"{name} = {item!r}: allowed are groups of {size} that begin with a source port")
                _check_port(name, item[0])
        for _, time in self.entropy_delay:
            _check_time("entropy_delay", time)
        for _, probability in self.entropy_mark:
            _check_probability("entropy_mark", probability)
        for _, start, end, *source in self.blackhole:
            for address in source:
                if not isinstance(address, bytes) or len(address) not in (4, 16):
                    raise ConfigError(f"blackhole source {address!r}: allowed are the 4 or 16 bytes of an IP address")
            _check_time("blackhole start", start)
            _check_time("blackhole end", end)
            if start >= end:
                raise ConfigError(f"blackhole from {start} to {end}: the end must be after the start")
        for kind in self.kinds:
            if kind not in (DATA, CONTROL, DATAGRAM, CNP):
                raise ConfigError(f"kinds = {self.kinds!r}: allowed are the kinds {DATA} to {CNP} of packets")


def _check_probability(name: str, value: object) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ConfigError(f"{name} = {value!r}: allowed are probabilities from 0 to 1")


def _check_time(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= NEVER:
        raise ConfigError(f"{name} = {value!r}: allowed are whole picoseconds from 0")


def _check_port(name: str, value: object) -> None:
    if not isinstance(value, int) or not (value == ANY or 0 <= value < 1 << 16):
        raise ConfigError(f"{name}: source port {value!r}: allowed are 0 to 65535, or {ANY} for all")


class FaultInjector(Wrapper):
    """Does to the packets sent through it what `faults` says. epoch: the time, on the Nic's clock, that the times of
    black holes count from.

    `send` takes every packet unless the inner Nic did not take all of the last ones: those wait here and go first.
    """

    def __init__(self, inner: Nic, faults: Faults, seed: int | str, epoch: Time = 0) -> None:
        super().__init__(inner)
        self.faults = faults
        self.epoch = epoch
        self.rng = random.Random(seed)
        self.lost = 0
        self.corrupted = 0
        self.duplicated = 0
        self.marked = 0
        self.reordered = 0
        self.blackholed = 0
        self._entropy_delay = dict(faults.entropy_delay)
        self._entropy_mark = dict(faults.entropy_mark)
        self._kinds = frozenset(faults.kinds)
        self._held: list[tuple[Time, int, Packet]] = []
        self._serial = 0
        self._ready: deque[Packet] = deque()

    def injected(self) -> dict[str, int]:
        """How many segments each fault has hit, and how many are held here now."""
        names = ("lost", "corrupted", "duplicated", "marked", "reordered", "blackholed")
        held = sum(entry[2].count for entry in self._held) + sum(packet.count for packet in self._ready)
        return {**{name: getattr(self, name) for name in names}, "held": held}

    def send(self, packets: Sequence[Packet]) -> int:
        if not self._release():
            return 0
        now = self.inner.now()
        out: list[Packet] = []
        for packet in packets:
            if packet.kind in self._kinds:
                self._inject(packet, now, out)
            else:
                out.append(packet)
        taken = self.inner.send(out) if out else 0
        for packet in out[taken:]:
            self._ready.append(_kept(packet))
        return len(packets)

    def receive(self, limit: int) -> list[Packet]:
        self._release()
        return self.inner.receive(limit)

    def wait(self, until: Time | None) -> None:
        if not self._release():
            retry = self.inner.now() + _RETRY
            until = retry if until is None else min(until, retry)
        if self._held:
            due = self._held[0][0]
            until = due if until is None else min(until, due)
        self.inner.wait(until)
        self._release()

    def next_event(self) -> Time:
        """When the network, or a packet held here, has something to do next."""
        inner = super().next_event()
        return min(inner, self._held[0][0]) if self._held else inner

    def close(self) -> None:
        """What is held here is lost."""
        self._held.clear()
        self._ready.clear()
        self.inner.close()

    def _inject(self, packet: Packet, now: Time, out: list[Packet]) -> None:
        """Append what leaves at once to `out`, and hold what leaves later."""
        if self._in_black_hole(packet, now - self.epoch):
            self.blackholed += packet.count
            return
        base = self.faults.delay_ps + self._entropy_delay.get(packet.entropy, 0)
        mark = self._entropy_mark.get(packet.entropy, self.faults.mark) if packet.ecn != NOT_ECT else 0.0
        first = 0
        fate: tuple[Time, bool] | None = None
        for index in range(packet.count):
            following = self._segment_fate(base, mark)
            if following != fate:
                self._leave(packet, first, index, fate, now, out)
                first, fate = index, following
            if following is not None and self._hit(self.faults.duplicate):
                self.duplicated += 1
                self._leave(packet, first, index + 1, fate, now, out)
                again = (self._delay(base), following[1])
                self._leave(packet, index, index + 1, again, now, out)
                first, fate = index + 1, None
        self._leave(packet, first, packet.count, fate, now, out)

    def _segment_fate(self, base: Time, mark: float) -> tuple[Time, bool] | None:
        """(delay, marked) of a segment; None if it is lost."""
        if self._hit(self.faults.loss):
            self.lost += 1
            return None
        if self._hit(self.faults.corrupt):
            self.corrupted += 1
            return None
        marked = self._hit(mark)
        self.marked += marked
        return self._delay(base), marked

    def _delay(self, base: Time) -> Time:
        if self.faults.jitter_ps:
            base += self.rng.randrange(self.faults.jitter_ps + 1)
        if self._hit(self.faults.reorder):
            self.reordered += 1
            base += self.faults.reorder_ps
        return base

    def _hit(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def _in_black_hole(self, packet: Packet, time: Time) -> bool:
        for port, start, end, *source in self.faults.blackhole:
            if port in (packet.entropy, ANY) and start <= time < end and (not source or source[0] == packet.src):
                return True
        return False

    def _leave(
        self, packet: Packet, first: int, end: int, fate: tuple[Time, bool] | None, now: Time, out: list[Packet]
    ) -> None:
        """Segments first to end of a packet leave with one fate."""
        if fate is None or first == end:
            return
        delay, marked = fate
        whole = end - first == packet.count
        if whole and not marked and not delay:
            out.append(packet)
            return
        part = packet.split(first, end - first)
        if marked:
            part.ecn = CE
        if not delay:
            out.append(part)
            return
        part.detach()
        self._serial += 1
        heappush(self._held, (now + delay, self._serial, part))
        self.alarm(now + delay)

    def _release(self) -> bool:
        """Send what is due; False if the inner Nic did not take it all."""
        if not self._held and not self._ready:
            return True
        now = self.inner.now()
        while self._held and self._held[0][0] <= now:
            self._ready.append(heappop(self._held)[2])
        if self._ready:
            taken = self.inner.send(list(self._ready))
            for _ in range(taken):
                self._ready.popleft()
        return not self._ready


def _kept(packet: Packet) -> Packet:
    """A copy with its own bytes: the sender's record and buffer are the sender's."""
    copy = packet.copy()
    copy.detach()
    return copy

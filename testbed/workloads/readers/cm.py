"""Connection matrices (`.cm`) of htsim: which host sends how much to which, and when.

    Nodes 16
    Connections 2
    Triggers 1
    0->15 id 1 start 0 size 2000000 send_done_trigger 1
    3->15 id 2 trigger 1 size 2000000
    trigger id 1 oneshot

A connection begins at `start` or when a trigger fires. A trigger is signalled when a connection is done at its sender
(`send_done_trigger`) or at its receiver (`recv_done_trigger`). A oneshot has one signal and starts all its connections;
a barrier has `count` signals and starts all with the last; each signal of a multishot starts the next, in the order of
the file.

Programs that read such files disagree about the unit of `start`: some take microseconds, some picoseconds. Nothing in a
file tells which, so the caller says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, TypeAlias, get_args

from testbed.workloads.readers.files import whole
from transport.clock import NEVER, SECOND, US, Time
from transport.errors import ConfigError

Unit: TypeAlias = Literal["us", "ps"]
TriggerKind: TypeAlias = Literal["oneshot", "multishot", "barrier"]
SwitchType: TypeAlias = Literal["TOR", "AGG", "CORE"]

_UNITS: Mapping[str, Time] = {"us": US, "ps": 1}
#: Hosts, and numbers of connections and triggers: htsim keeps them in 32 bits with a sign.
_MOST = (1 << 31) - 1
_DECIMAL = re.compile(r"[0-9]{1,19}(\.[0-9]{1,12})?(e[+-]?[0-9]{1,2})?", re.IGNORECASE)
_HEADER = ("Nodes", "Connections", "Triggers", "Failures")


@dataclass(frozen=True, slots=True)
class Connection:
    """`size` bytes from host `src` to host `dst`. It begins at `start` (picoseconds) or with `trigger`; the other is
    None. id: None if it has none. priority: of its packets, None if it is not said."""

    src: int
    dst: int
    size: int
    id: int | None = None
    start: Time | None = None
    trigger: int | None = None
    send_done_trigger: int | None = None
    recv_done_trigger: int | None = None
    priority: int | None = None

    @property
    def signals(self) -> tuple[int, ...]:
        """The triggers that its end signals."""
        return tuple(t for t in (self.send_done_trigger, self.recv_done_trigger) if t is not None)


@dataclass(frozen=True, slots=True)
class Trigger:
    """count: signals that a barrier waits for, 0 for the other kinds."""

    id: int
    kind: TriggerKind
    count: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """A dead uplink of a switch."""

    switch_type: SwitchType
    switch_id: int
    link_id: int


@dataclass(frozen=True)
class ConnectionMatrix:
    """A whole file. nodes: hosts, numbered from 0. notes: how it was read, and what is odd about it."""

    nodes: int
    connections: tuple[Connection, ...]
    triggers: tuple[Trigger, ...] = ()
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

    def after(self) -> tuple[tuple[int, ...] | None, ...]:
        """For each connection the places of those that must be done before it begins, None if it can never begin.

        Which signal of a multishot comes first is known only in a run, so it is taken from a run in which connections
        end in the order in which they begin.
        """
        kinds = {trigger.id: trigger for trigger in self.triggers}
        waiting = _by_trigger(self.connections, lambda c: (c.trigger,) if c.trigger is not None else ())
        signalled: dict[int, list[int]] = {}
        found: list[tuple[int, ...] | None] = [None] * len(self.connections)
        done = [i for i, c in enumerate(self.connections) if c.start is not None]
        done.sort(key=lambda i: self.connections[i].start or 0)
        for i in done:
            found[i] = ()
        for i in done:  # grows while it is walked
            for number in self.connections[i].signals:
                trigger = kinds[number]
                before = signalled.setdefault(number, [])
                before.append(i)
                begun: list[int] = []
                needed: tuple[int, ...] = ()
                if trigger.kind == "multishot":
                    begun, needed = waiting.get(number, [])[len(before) - 1 : len(before)], (i,)
                elif len(before) == max(1, trigger.count):
                    begun, needed = waiting.get(number, []), tuple(dict.fromkeys(before))
                for j in begun:
                    found[j] = needed
                done += begun
        return tuple(found)


def parse(text: str, source: str, unit: Unit = "us", lenient: bool = False) -> ConnectionMatrix:
    """A connection matrix. unit: of `start`.

    With `lenient`, counts in the header that are wrong become notes, and so do triggers that connections signal and
    that are not declared: they are taken for oneshots.
    """
    if unit not in _UNITS:
        raise ConfigError(f"unit = {unit!r}: allowed are {', '.join(_UNITS)}")
    reader = _Reader(source, unit, lenient)
    for number, line in enumerate(text.split("\n"), 1):
        reader.line(number, line)
    return reader.finish()


def write(matrix: ConnectionMatrix, unit: Unit = "us") -> str:
    """The text of a file that htsim reads. unit: that of the program that will read it.

    Exact, but some programs keep `start` in a float of 24 bits and `size` in 31 bits.
    """
    head = [f"Nodes {matrix.nodes}", f"Connections {len(matrix.connections)}"]
    head += [f"Triggers {len(matrix.triggers)}"] if matrix.triggers else []
    head += [f"Failures {len(matrix.failures)}"] if matrix.failures else []
    body = [_connection_line(connection, _UNITS[unit]) for connection in matrix.connections]
    for trigger in matrix.triggers:
        count = f" count {trigger.count}" if trigger.kind == "barrier" else ""
        body.append(f"trigger id {trigger.id} {trigger.kind}{count}")
    for failure in matrix.failures:
        body.append(
            f"failure switch_type {failure.switch_type} switch_id {failure.switch_id} link_id {failure.link_id}"
        )
    return "\n".join([*head, *body]) + "\n"


def _connection_line(connection: Connection, factor: Time) -> str:
    values = {
        "id": connection.id, "start": _decimal(connection.start, factor), "trigger": connection.trigger,
        "size": connection.size, "send_done_trigger": connection.send_done_trigger,
        "recv_done_trigger": connection.recv_done_trigger, "prio": connection.priority,
    }  # fmt: skip
    words = [f"{name} {value}" for name, value in values.items() if value is not None]
    return " ".join([f"{connection.src}->{connection.dst}", *words])


def _decimal(time: Time | None, factor: Time) -> str | None:
    """Picoseconds in units of `factor`, exactly."""
    if time is None:
        return None
    units, rest = divmod(time, factor)
    return f"{units}.{rest:0{len(str(factor)) - 1}d}".rstrip("0") if rest else str(units)


def _by_trigger(
    connections: Iterable[Connection], triggers: Callable[[Connection], Iterable[int]]
) -> dict[int, list[int]]:
    """The places of connections by the triggers that a function finds in each."""
    found: dict[int, list[int]] = {}
    for i, connection in enumerate(connections):
        for number in triggers(connection):
            found.setdefault(number, []).append(i)
    return found


class _Reader:
    """Collects the lines of one file."""

    def __init__(self, source: str, unit: Unit, lenient: bool) -> None:
        self.source = source
        self.unit: Unit = unit
        self.lenient = lenient
        self._header: dict[str, tuple[int, int]] = {}
        self._connections: list[Connection] = []
        self._lines: list[int] = []
        self._ids: dict[int, int] = {}
        self._triggers: dict[int, tuple[Trigger, int]] = {}
        self._failures: list[Failure] = []
        self._body = False
        self._notes: list[str] = []

    def line(self, number: int, line: str) -> None:
        """Take in one line."""
        words = line.partition("#")[0].split()
        if not words:
            return
        place = f"{self.source}, line {number}"
        if words[0] in _HEADER:
            self._count(words, number, place)
        elif "->" in words[0]:
            self._connection(words, number, place)
        elif words[0] == "trigger":
            self._trigger(words[1:], number, place)
        elif words[0] == "failure":
            self._failure(words[1:], place)
        else:
            raise ConfigError(
                f"{place}: {line.strip()[:40]!r}: allowed are {', '.join(_HEADER)} and a number, a connection such as "
                "0->1 start 0 size 1000, a trigger, a failure"
            )

    def finish(self) -> ConnectionMatrix:
        """The whole, checked."""
        nodes = self._nodes(self.source)
        unsaid = [("Connections", len(self._connections)), ("Triggers", len(self._triggers))]
        for name, actual in [*unsaid, ("Failures", len(self._failures))]:
            said, line = self._header.get(name, (0, 0))
            if said != actual:
                place = f"{self.source}, line {line}" if line else self.source
                self._complain(
                    f"{place}: {name} {said}: the file has {actual}" + ("" if line else ", and does not say")
                )
        self._check_triggers()
        triggers = tuple(trigger for trigger, _ in self._triggers.values())
        matrix = ConnectionMatrix(nodes, tuple(self._connections), triggers, tuple(self._failures))
        never = [i for i, awaited in enumerate(matrix.after()) if awaited is None]
        if never:
            raise ConfigError(f"{self._place_of(never[0])}: it can never begin: {self._reason(matrix, never)}")
        notes = (*self._notes, *_notes(matrix, self.unit))
        return ConnectionMatrix(nodes, matrix.connections, triggers, matrix.failures, notes)

    def _complain(self, text: str) -> None:
        if not self.lenient:
            raise ConfigError(text)
        self._notes.append(f"warning: {text}")

    def _nodes(self, place: str) -> int:
        if "Nodes" not in self._header:
            raise ConfigError(f"{place}: Nodes is missing: it must be in front of all connections")
        return self._header["Nodes"][0]

    def _count(self, words: list[str], number: int, place: str) -> None:
        name = words[0]
        if self._body:
            raise ConfigError(f"{place}: {name}: it must be in front of all connections, triggers and failures")
        if name in self._header:
            raise ConfigError(f"{place}: {name} is in line {self._header[name][1]} already")
        if len(words) != 2:
            raise ConfigError(f"{place}: {' '.join(words)[:40]!r}: {name} and one number are needed")
        self._header[name] = (_number(name, words[1], place, 2 if name == "Nodes" else 0), number)

    def _connection(self, words: list[str], number: int, place: str) -> None:
        self._body = True
        src, _, dst = words[0].partition("->")
        most = self._nodes(place) - 1
        ends = [_number(f"{words[0][:40]}: {name}", end, place, 0, most) for name, end in (("from", src), ("to", dst))]
        if ends[0] == ends[1]:
            raise ConfigError(f"{place}: {words[0]}: host {ends[0]} sends to itself: two different hosts are allowed")
        given = dict(_pairs(words[1:], _CONNECTION, place))
        if "size" not in given:
            raise ConfigError(f"{place}: size is missing: allowed are 1 to 2^53 bytes")
        size = _number("size", given["size"], place, 1, 1 << 53)
        if ("start" in given) == ("trigger" in given):
            which = "both start and trigger" if "start" in given else "neither start nor trigger"
            raise ConfigError(f"{place}: {which}: exactly one of them is allowed")
        start = _time(given["start"], self.unit, place) if "start" in given else None
        numbers = {
            _FIELDS.get(name, name): _number(name, given[name], place, low) for name, low in _NUMBERS if name in given
        }
        connection = Connection(ends[0], ends[1], size, start=start, **numbers)
        if connection.id is not None:
            if connection.id in self._ids:
                raise ConfigError(f"{place}: id = {connection.id}: it is in line {self._ids[connection.id]} already")
            self._ids[connection.id] = number
        elif connection.trigger is not None:
            raise ConfigError(f"{place}: id is missing: a connection that a trigger starts needs one")
        self._connections.append(connection)
        self._lines.append(number)

    def _trigger(self, words: list[str], number: int, place: str) -> None:
        self._body = True
        kinds: list[TriggerKind] = [kind for kind in get_args(TriggerKind) for word in words if word == kind]
        if len(kinds) != 1:
            raise ConfigError(f"{place}: a trigger has one kind, allowed are {', '.join(get_args(TriggerKind))}")
        kind = kinds[0]
        given = dict(_pairs([word for word in words if word != kind], ("id", "count"), place))
        if "id" not in given:
            raise ConfigError(f"{place}: id is missing: a trigger needs one")
        if ("count" in given) != (kind == "barrier"):
            raise ConfigError(f"{place}: a {kind} {'has no' if 'count' in given else 'needs a'} count")
        count = _number("count", given["count"], place, 1) if kind == "barrier" else 0
        found = Trigger(_number("id", given["id"], place, 1), kind, count)
        if found.id in self._triggers:
            raise ConfigError(f"{place}: trigger {found.id} is in line {self._triggers[found.id][1]} already")
        self._triggers[found.id] = (found, number)

    def _failure(self, words: list[str], place: str) -> None:
        self._body = True
        given = dict(_pairs(words, _FAILURE, place))
        for name in _FAILURE:
            if name not in given:
                raise ConfigError(f"{place}: {name} is missing: a failure needs {', '.join(_FAILURE)}")
        kinds: tuple[SwitchType, ...] = get_args(SwitchType)
        kind = next((kind for kind in kinds if kind == given["switch_type"]), None)
        if kind is None:
            raise ConfigError(f"{place}: switch_type = {given['switch_type'][:40]!r}: allowed are {', '.join(kinds)}")
        self._failures.append(Failure(kind, *(_number(name, given[name], place, 0) for name in _FAILURE[1:])))

    def _check_triggers(self) -> None:
        """Whether each trigger that is used is declared and gets as many signals as it can take."""
        targets = _by_trigger(self._connections, lambda c: (c.trigger,) if c.trigger is not None else ())
        sources = _by_trigger(self._connections, lambda c: c.signals)
        unknown = {t: i for uses in (sources, targets) for t, (i, *_) in uses.items() if t not in self._triggers}
        if unknown:
            number, first = min(unknown.items(), key=lambda item: item[1])
            if not self.lenient:
                raise ConfigError(f"{self._place_of(first)}: trigger {number} is not declared: {self._declared()}")
            for t in sorted(unknown):
                self._triggers[t] = (Trigger(t, "oneshot"), 0)
            self._notes.append(
                f"warning: {self.source}: {len(unknown)} triggers are not declared, the first is {number}; taken for "
                "oneshots"
            )
        for number, (trigger, line) in self._triggers.items():
            signals, started = len(sources.get(number, ())), len(targets.get(number, ()))
            place = (
                f"{self.source}, line {line}" if line else self._place_of((sources.get(number) or targets[number])[0])
            )
            needed = {"oneshot": 1, "multishot": started, "barrier": trigger.count}[trigger.kind]
            if started and signals < needed:
                raise ConfigError(
                    f"{place}: trigger {number} can never fire{' often enough' if signals else ''}: {_needs(trigger)}, "
                    f"and {signals} connections signal it"
                )
            if trigger.kind != "multishot" and signals > needed:
                raise ConfigError(f"{place}: trigger {number}: {_needs(trigger)}, and {signals} connections signal it")

    def _declared(self) -> str:
        if not self._triggers:
            return "the file declares none"
        ids = sorted(self._triggers)
        return f"{len(ids)} are, with numbers from {ids[0]} to {ids[-1]}"

    def _place_of(self, i: int) -> str:
        connection = self._connections[i]
        return f"{self.source}, line {self._lines[i]}: {connection.src}->{connection.dst}"

    def _reason(self, matrix: ConnectionMatrix, never: list[int]) -> str:
        """The circle of triggers behind connections that can never begin."""
        sources = _by_trigger(matrix.connections, lambda c: c.signals)
        stuck, seen = set(never), dict[int, int]()
        i = never[0]
        while i not in seen:
            seen[i] = len(seen)
            trigger = matrix.connections[i].trigger
            i = next(j for j in sources.get(trigger or 0, ()) if j in stuck)
        circle = [str(matrix.connections[j].trigger) for j in list(seen)[seen[i] :]]
        what = f"trigger {circle[0]} waits" if len(circle) == 1 else f"triggers {', '.join(circle)} wait"
        return f"{what} for itself" if len(circle) == 1 else f"{what} for each other"


#: What a connection says after its hosts, and the words for which the record has another name.
_CONNECTION = ("id", "start", "trigger", "size", "send_done_trigger", "recv_done_trigger", "prio")
_FIELDS = {"prio": "priority"}
#: Its plain numbers with the least value of each: htsim takes 0 for none.
_NUMBERS = (("id", 1), ("trigger", 1), ("send_done_trigger", 1), ("recv_done_trigger", 1), ("prio", 0))
_FAILURE = ("switch_type", "switch_id", "link_id")


def _needs(trigger: Trigger) -> str:
    return {
        "oneshot": "a oneshot takes one signal",
        "multishot": "a multishot takes a signal for each connection that it starts",
        "barrier": f"a barrier takes as many signals as its count = {trigger.count}",
    }[trigger.kind]


def _notes(matrix: ConnectionMatrix, unit: Unit) -> Iterator[str]:
    """How the starts were read, and what is in the file that has no effect on a workload."""
    starts = [c.start for c in matrix.connections if c.start is not None]
    last = max(starts, default=0)
    name = {"us": "microseconds", "ps": "picoseconds"}[unit]
    text = f"start: read as {name}, the last is {last / US:g} us"
    if unit == "us" and last >= SECOND:
        text += ', which is long: if the file has picoseconds, say unit = "ps"'
    if unit == "ps" and 0 < last < US:
        text += ', which is short: if the file has microseconds, say unit = "us"'
    yield text
    used = {c.trigger for c in matrix.connections}
    idle = [trigger.id for trigger in matrix.triggers if trigger.id not in used]
    if idle:
        yield f"triggers: {len(idle)} start nothing, the first is {idle[0]}"


def _pairs(words: list[str], allowed: tuple[str, ...], place: str) -> Iterator[tuple[str, str]]:
    """Names and values in turn."""
    seen: set[str] = set()
    for name, value in zip(words[::2], [*words[1::2], *([""] if len(words) % 2 else [])], strict=True):
        if name not in allowed:
            raise ConfigError(f"{place}: {name[:40]!r} is unknown; known: {', '.join(allowed)}")
        if not value:
            raise ConfigError(f"{place}: {name} is the last word: its value is missing")
        if name in seen:
            raise ConfigError(f"{place}: {name} is there twice")
        seen.add(name)
        yield name, value


def _number(name: str, text: str, place: str, low: int, high: int = _MOST) -> int:
    value = whole(text)
    if value is None or not low <= value <= high:
        raise ConfigError(f"{place}: {name} = {text[:40]!r}: allowed are whole numbers from {low} to {high}")
    return value


def _time(text: str, unit: Unit, place: str) -> Time:
    value = Fraction(text) * _UNITS[unit] if _DECIMAL.fullmatch(text) else Fraction(-1)
    if value.denominator != 1 or not 0 <= value < NEVER:
        raise ConfigError(
            f"{place}: start = {text[:40]!r} {unit}: allowed are whole picoseconds from 0 to {NEVER - 1}, also as a "
            "decimal fraction"
        )
    return int(value)

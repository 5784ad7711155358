"""Takes down what goes on in one variant over a simulated fabric: its messages, and samples of ports and controls.

It only reads, between two events of the loop, and is not one of them: a run with it gives the same result to the bit.
Ports and controls that are as they were at the sample before get no row. What a queue does between two samples is not
seen, but what is counted there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from testbed.rank import Rank
from testbed.record.recorder import Row, VariantRecorder
from testbed.sim.port import Port
from transport.clock import NEVER, Time
from transport.connection import Connection
from transport.flight import Subflow

#: What a path counted: packets sent, delivered, marked, lost.
_Counts: TypeAlias = tuple[int, int, int, int]


class _Flow(NamedTuple):
    """What a rank sends to another by a connection."""

    src: int
    dst: int
    connection: Connection


class _Message(NamedTuple):
    """completed: None if it is not."""

    src: int
    dst: int
    size: int
    posted: Time
    completed: Time | None


class Recording:
    """ports: by name. due: when the next sample is to be taken, NEVER before the first phase, and while nothing is
    going to happen."""

    def __init__(self, recorder: VariantRecorder, ports: Mapping[str, Port], ranks: Sequence[Rank]) -> None:
        self.recorder = recorder
        self.ports = ports
        self.ranks = ranks
        self.due = NEVER
        self._origin = 0
        self._flows: list[_Flow] = []
        self._before: dict[object, Row] = {}  # the latest row of each port, and of each flow
        self._counted: dict[Subflow, _Counts] = {}

    def begin(self, now: Time) -> None:
        """The first phase begins: times count from here."""
        self._origin = self.due = now
        self._flows = [
            _Flow(rank.number, peer.number, peer.connection)
            for rank in self.ranks
            for peer in rank.peers()
            if any((m.src, m.dst) == (rank.number, peer.number) for phase in rank.phases for m in phase.messages)
        ]

    def sample(self, now: Time, following: Time) -> None:
        """Take one at `now`, up to which everything has happened. following: when something happens next."""
        self._sample(now)
        self.due = NEVER if following >= NEVER else self._from(max(following, now + 1))

    def ended(self, now: Time) -> None:
        """A phase is over, or cannot go on."""
        self._sample(now)
        self.due = self._from(now + 1)
        self._messages()
        self._paths()

    def _from(self, time: Time) -> Time:
        """The first moment for a sample that is not before `time`."""
        return self._origin - (self._origin - time) // self.recorder.every * self.recorder.every

    def _sample(self, now: Time) -> None:
        time = now - self._origin
        of_ports = ((name, _port(port)) for name, port in self.ports.items())
        self.recorder.add("ports", [(time, name, *row) for name, row in of_ports if self._is_new(name, row)])
        of_flows = ((flow, _control(flow.connection)) for flow in self._flows)
        self.recorder.add(
            "control",
            [(time, flow.src, flow.dst, *row) for flow, row in of_flows if self._is_new(flow[:2], row)],
        )

    def _is_new(self, key: object, row: Row) -> bool:
        if self._before.get(key) == row:
            return False
        self._before[key] = row
        return True

    def _messages(self) -> None:
        phase = self.ranks[0].phase_name
        found = [_Message(*row) for rank in self.ranks for row in rank.rows]
        found += [_Message(*row, None) for rank in self.ranks for row in rank.outstanding()]
        self.recorder.add("messages", [(phase, m.src, m.dst, m.size, *self._course([m])) for m in found])
        flows: dict[tuple[int, int], list[_Message]] = {}
        for message in found:
            flows.setdefault((message.src, message.dst), []).append(message)
        self.recorder.add(
            "flows",
            [
                (phase, *pair, len(of_pair), sum(m.size for m in of_pair), *self._course(of_pair))
                for pair, of_pair in sorted(flows.items())
            ],
        )

    def _course(self, messages: Sequence[_Message]) -> Row:
        """When messages were posted and complete, and how they ended."""
        start = min(m.posted for m in messages) - self._origin
        ends = [m.completed for m in messages if m.completed is not None]
        if len(ends) < len(messages):
            return start, None, "OUTSTANDING"
        return start, max(ends) - self._origin, "SUCCESS"

    def _paths(self) -> None:
        phase = self.ranks[0].phase_name
        rows: list[Row] = []
        for flow in self._flows:
            for subflow in flow.connection.context.peer.subflows:
                path = subflow.path
                counts = (subflow.next_order, path.delivered_packets, path.marked_packets, path.lost_packets)
                before = self._counted.get(subflow, (0, 0, 0, 0))
                if counts != before:
                    self._counted[subflow] = counts
                    grown = (now - then for now, then in zip(counts, before, strict=True))
                    rows.append((phase, flow.src, flow.dst, path.plane, path.entropy, *grown, _known(path.srtt)))
        self.recorder.add("paths", rows)


def _port(port: Port) -> Row:
    return (
        port.data.size, port.control.size, port.bytes, port.packets, port.control_packets, port.marked, port.trimmed,
        port.dropped, port.control_dropped, port.link.lost, port.pauses, int(port.paused),
    )  # fmt: skip


def _control(connection: Connection) -> Row:
    context, sender = connection.context, connection.sender
    flying = 0 if connection.dormant is not None else sender.in_flight
    return int(context.control.window), int(context.control.rate), flying, _known(context.paths.srtt)


def _known(time: Time) -> Time | None:
    return time if time >= 0 else None

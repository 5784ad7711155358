"""One rank: the connections and buffers of one endpoint, and its part in each phase of a workload.

A Rank does not wait and does not know what carries its packets. Whoever drives it (testbed.virtual, testbed.processes)
hands it completions and asks whether it is done. The steps of a phase: `prepare` on all ranks, then `start` on all,
then completions until all are done, then `verify` on all.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from testbed.errors import RunError
from testbed.workloads.base import Message, Phase, payload
from transport.clock import NEVER, Time
from transport.completion import Completion, Opcode, Status
from transport.config import ConnectionParameters
from transport.connection import Connection
from transport.endpoint import Endpoint
from transport.placement import Access, MemoryRegion

_INBOX = Access.LOCAL_WRITE | Access.REMOTE_WRITE
_OUTBOX = Access.REMOTE_READ


def digest(data: bytes | bytearray | memoryview) -> str:
    """What bytes are compared by: BLAKE2b of 16 bytes, as hex."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def address_of(rank: int, plane: int = 0) -> bytes:
    """The IPv4 address of a rank on a plane: 127.0.0.1 is rank 0 on the first, 127.1.0.1 on the second, and on through
    127/8, which all is this machine."""
    return bytes([127, *((plane << 16) + rank + 1).to_bytes(3, "big")])


def addresses_of(rank: int, ports: int) -> tuple[bytes, ...]:
    """The addresses of a rank that has so many ports, one on each plane."""
    return tuple(address_of(rank, plane) for plane in range(ports))


class _Item(NamedTuple):
    """A message with its offset in the buffer of its pair, and its place in the phase."""

    message: Message
    offset: int
    place: int


class _Peer:
    """What a rank has towards one other: a connection, and a buffer in each direction for the largest phase."""

    def __init__(
        self, number: int, connection: Connection, inbox: MemoryRegion | None, outbox: MemoryRegion | None
    ) -> None:
        self.number = number
        self.connection = connection
        self.inbox = inbox
        self.outbox = outbox
        self.remote_inbox = (0, 0)
        self.remote_outbox = (0, 0)
        # Of the current phase:
        self.sending: memoryview = memoryview(b"")
        self.to_post: deque[_Item] = deque()
        self.to_expect: deque[_Item] = deque()
        self.outstanding = 0
        self.receives = 0
        self.next_post = 0


class Rank:
    """Rank `number` of a workload, on `endpoint`. phases: the whole workload's, of which it picks its own messages.
    phantom: bytes exist only in number: none are kept, and instead of digests the bytes placed are compared."""

    def __init__(
        self, number: int, endpoint: Endpoint, phases: Sequence[Phase], seed: int, now: Time, phantom: bool = False
    ) -> None:
        self.number = number
        self.endpoint = endpoint
        self.seed = seed
        self.phantom = phantom
        self.phases = []
        self._places: list[list[int]] = []  # of own messages in the whole phase
        for phase in phases:
            places = [i for i, m in enumerate(phase.messages) if number in (m.src, m.dst)]
            self._places.append(places)
            self.phases.append(replace(phase, messages=tuple(phase.messages[i] for i in places)))
        #: Told of each message of the phase that this rank posted and that is complete, if set.
        self.announce: Callable[[int, Time], None] | None = None
        self._gated: dict[int, tuple[_Peer, _Item]] = {}
        self._begun = 0
        self._timed = False
        self.phase = -1
        self.depth = 1
        self.interval = 0
        self.waiting_for = 0
        self.next_post = NEVER
        self.rows: list[tuple[int, int, int, int, int]] = []
        self._posted: dict[int, tuple[_Peer, _Item, Time]] = {}
        self._receives: dict[int, tuple[_Peer, Message]] = {}
        self._wr_id = 0
        self._counters = self._count()
        self._placed = 0
        self._peers: dict[int, _Peer] = {}
        domain = endpoint.protection_domain()
        readable = any(message.op == "read" for phase in phases for message in phase.messages)
        for other in sorted({m.src + m.dst - number for phase in self.phases for m in phase.messages}):
            connection = endpoint.create_connection(domain, now)
            inbox = self._largest(other, number)
            outbox = self._largest(number, other) if readable else None
            self._peers[other] = _Peer(
                other,
                connection,
                None if inbox is None else domain.register(self._memory(inbox), _INBOX),
                None if outbox is None else domain.register(self._memory(outbox), _OUTBOX),
            )

    def _largest(self, src: int, dst: int) -> int | None:
        """Bytes of the largest phase from src to dst, None if there is never a message."""
        flows = [[m.size for m in phase.messages if (m.src, m.dst) == (src, dst)] for phase in self.phases]
        return max(sum(sizes) for sizes in flows) if any(flows) else None

    def _memory(self, size: int) -> bytearray | int:
        return size if self.phantom else bytearray(size)

    # Meeting the others

    def describe(self) -> dict[str, Any]:
        """What each peer needs to know, by its number; JSON-able."""
        return {
            str(peer.number): {
                "parameters": peer.connection.parameters.to_json(),
                "inbox": _told(peer.inbox),
                "outbox": _told(peer.outbox),
            }
            for peer in self._peers.values()
        }

    def connect(self, now: Time, described: Mapping[str, Any]) -> None:
        """described: what each peer says to this rank, by the peer's number. NegotiationError if two cannot agree."""
        for number, said in described.items():
            peer = self._peers[int(number)]
            peer.remote_inbox = tuple(said["inbox"])
            peer.remote_outbox = tuple(said["outbox"])
            peer.connection.connect(now, ConnectionParameters.from_json(said["parameters"]))

    # A phase

    def prepare(self, now: Time, phase: int) -> dict[str, str]:
        """Fill the send buffers and post the receives of a phase. Returns the digest of the bytes for each peer."""
        plan = self.phases[phase]
        self.phase = phase
        self.depth = plan.depth
        self.interval = plan.interval
        self.rows = []
        self._placed = self.endpoint.totals.bytes_placed
        sent = {}
        self._gated = {}
        self._timed = any(m.start for m in plan.messages)
        flows: dict[tuple[int, int], list[tuple[Message, int]]] = {}
        for message, place in zip(plan.messages, self._places[phase], strict=True):
            flows.setdefault((message.src, message.dst), []).append((message, place))
        for peer in self._peers.values():
            out = _placed(flows.get((self.number, peer.number), []))
            into = _placed(flows.get((peer.number, self.number), []))
            size = sum(item.message.size for item in out)
            if size and self.phantom:
                sent[str(peer.number)] = _counted(size)
            elif size:
                data = payload(self.seed, phase, self.number, peer.number, size)
                sent[str(peer.number)] = digest(data)
                peer.sending = memoryview(data)
                if peer.outbox is not None and peer.outbox.view is not None:
                    peer.outbox.view[:size] = data
            posting = [item for item in out if item.message.op != "read"]
            posting += [item for item in into if item.message.op == "read"]
            for item in posting:
                if item.message.after:
                    self._gated[item.place] = (peer, item)
            peer.to_post = deque(item for item in posting if not item.message.after)
            peer.to_expect = deque(item for item in into if item.message.wakes)
            peer.outstanding = 0
            self.waiting_for += len(posting) + len(peer.to_expect)
            self._post_receives(peer, now)
        return sent

    def start(self, now: Time) -> None:
        """Post the first requests to every peer."""
        self._begun = now
        for peer in self._peers.values():
            peer.next_post = now
        self.handle_timeout(now)

    def handle_timeout(self, now: Time) -> None:
        """Post what is due; call it at `next_post` (NEVER if nothing waits for its time)."""
        for peer in self._peers.values():
            self._post(peer, now)
        self._find_next_post()

    def on_completion(self, completion: Completion, now: Time) -> None:
        """RunError if a request failed or something came that this phase does not have."""
        if completion.status != Status.SUCCESS:
            raise RunError(
                f"rank {self.number}, {self._name()}: {completion.opcode.name} ended with {completion.status.name}: "
                f"{completion.error}"
            )
        posted = self._posted.pop(completion.wr_id, None)
        if posted is not None:
            peer, (message, _, place), at = posted
            self.rows.append((message.src, message.dst, message.size, at, now))
            peer.outstanding -= 1
            if self.announce is not None:
                self.announce(place, now)
            self._post(peer, now)
            self._find_next_post()
        else:
            peer, message = self._receives.pop(completion.wr_id)
            with_imm = completion.opcode == Opcode.RECV_RDMA_WITH_IMM
            if completion.byte_len != message.size or (with_imm and completion.imm != self.phase):
                raise RunError(
                    f"rank {self.number}, {self._name()}: {completion.byte_len} bytes of phase {completion.imm} were "
                    f"delivered from rank {peer.number} where {message.size} of phase {self.phase} were expected"
                )
            peer.receives -= 1
            self._post_receives(peer, now)
        self.waiting_for -= 1

    def release(self, place: int, now: Time) -> None:
        """What the message at that place of the phase waited for is complete."""
        peer, item = self._gated.pop(place)
        peer.to_post.append(item)
        self._post(peer, now)
        self._find_next_post()

    @property
    def done(self) -> bool:
        """Whether every request of this rank has completed and everything it must be woken for has come."""
        return self.waiting_for == 0

    def outstanding(self) -> Iterator[tuple[int, int, int, Time]]:
        """Messages that were posted and are not complete: src, dst, size, when."""
        for _, (message, _, _), at in self._posted.values():
            yield message.src, message.dst, message.size, at

    def missing(self) -> str:
        """What is still waited for, for an error."""
        sends = ", ".join(sorted({f"rank {peer.number}" for peer, _, _ in self._posted.values()}, key=str)) or "none"
        receives = ", ".join(sorted({f"rank {peer.number}" for peer, _ in self._receives.values()}, key=str)) or "none"
        unposted = sum(len(peer.to_post) for peer in self._peers.values()) + len(self._gated)
        return (
            f"{self._name()}: requests outstanding with {sends}; messages missing from {receives}; {unposted} requests "
            "not posted yet"
        )

    def verify(self) -> dict[str, str]:
        """Digests of the bytes that came from each peer in this phase."""
        received = {}
        if self.phantom:
            sizes = {p.number: self._expected(p) for p in self._peers.values()}
            placed = self.endpoint.totals.bytes_placed - self._placed
            right = placed == sum(sizes.values())
            return {
                str(number): _counted(size) if right else f"{placed} of {sum(sizes.values())} bytes from all"
                for number, size in sizes.items()
                if size
            }
        for peer in self._peers.values():
            size = self._expected(peer)
            if size:
                assert peer.inbox is not None
                received[str(peer.number)] = digest(_part(peer.inbox, 0, size))
        return received

    def _expected(self, peer: _Peer) -> int:
        """Bytes that come from a peer in this phase."""
        return sum(m.size for m in self.phases[self.phase].messages if m.src == peer.number)

    def peers(self) -> Iterable[_Peer]:
        """What it has towards each rank that it talks to."""
        return self._peers.values()

    def counted(self) -> dict[str, int]:
        """What the endpoint's counters grew by since this was asked last, and path_changes: how often a path whose turn
        it was gave way to another."""
        before, self._counters = self._counters, self._count()
        return {name: value - before[name] for name, value in self._counters.items()}

    def _count(self) -> dict[str, int]:
        turns = sum(peer.paths.selector.turns for peer in self.endpoint.peers.values())
        return {**self.endpoint.counters(), "path_changes": turns}

    def paths_used(self) -> int:
        """Source ports, on each plane, that data of this phase left by."""
        paths = [path for peer in self.endpoint.peers.values() for path in peer.paths.paths]
        return len({(path.plane, path.entropy) for path in paths if path.carried_at >= self._begun})

    def close(self, now: Time) -> None:
        """Close all connections. The endpoint must be driven a little longer to tell the peers."""
        for peer in self._peers.values():
            peer.connection.close(now)

    def _post(self, peer: _Peer, now: Time) -> None:
        while (
            peer.to_post
            and peer.outstanding < self.depth
            and peer.next_post <= now
            and self._begun + peer.to_post[0].message.start <= now
        ):
            peer.next_post += self.interval
            item = peer.to_post.popleft()
            message, offset, _ = item
            self._wr_id += 1
            if message.op == "read":
                assert peer.inbox is not None
                address, rkey = peer.remote_outbox
                target = self._target(peer.inbox, offset, message.size)
                peer.connection.post_read(now, self._wr_id, target, address + offset, rkey)
            elif message.op == "send":
                peer.connection.post_send(now, self._wr_id, self._source(peer, offset, message.size))
            else:
                address, rkey = peer.remote_inbox
                imm = self.phase if message.op == "write_imm" else None
                data = self._source(peer, offset, message.size)
                peer.connection.post_write(now, self._wr_id, data, address + offset, rkey, imm)
            peer.outstanding += 1
            self._posted[self._wr_id] = (peer, item, now)

    def _source(self, peer: _Peer, offset: int, size: int) -> memoryview | int:
        return size if self.phantom else peer.sending[offset : offset + size]

    def _target(self, inbox: MemoryRegion, offset: int, size: int) -> memoryview | int:
        return size if self.phantom else _part(inbox, offset, size)

    def _find_next_post(self) -> None:
        if self.interval or self._timed:
            self.next_post = min(
                (
                    max(p.next_post, self._begun + p.to_post[0].message.start)
                    for p in self._peers.values()
                    if p.to_post and p.outstanding < self.depth
                ),
                default=NEVER,
            )

    def _post_receives(self, peer: _Peer, now: Time) -> None:
        """Keep as many receives posted as the receive queue holds, in the order the messages will come."""
        while peer.to_expect and peer.receives < self.endpoint.config.rq_depth:
            message, offset, _ = peer.to_expect.popleft()
            peer.receives += 1
            self._wr_id += 1
            buffer: memoryview | bytearray | int = bytearray(0)
            if message.op == "send" and message.size:
                assert peer.inbox is not None
                buffer = self._target(peer.inbox, offset, message.size)
            peer.connection.post_recv(now, self._wr_id, buffer)
            self._receives[self._wr_id] = (peer, message)

    @property
    def phase_name(self) -> str:
        """Of the current phase; nothing before the first."""
        return self.phases[self.phase].name if self.phase >= 0 else ""

    def _name(self) -> str:
        return f"phase {self.phase_name!r}" if self.phase >= 0 else "before the first phase"


def _counted(size: int) -> str:
    """What stands for a digest where bytes are only counted."""
    return f"{size} bytes placed"


def _part(region: MemoryRegion, offset: int, size: int) -> memoryview:
    assert region.view is not None
    return region.view[offset : offset + size]


def _placed(messages: Sequence[tuple[Message, int]]) -> list[_Item]:
    """Messages of one pair, with their places in the phase, in the order in which they may start."""
    placed, offset = [], 0
    for message, place in sorted(messages, key=lambda item: item[0].start):
        placed.append(_Item(message, offset, place))
        offset += message.size
    return placed


def _told(region: MemoryRegion | None) -> tuple[int, int]:
    return (region.address, region.rkey) if region is not None else (0, 0)

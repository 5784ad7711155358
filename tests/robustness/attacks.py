"""What a stranger can send at one queue pair, and the counter that each kind must move.

An `Attack` makes one Packet as if the victim's peer had sent it: from the peer's address, to the victim's. Strangers
guess or observe; none of these attacks has the verification tag of the victim's direction, except those in `TAGGED`,
which are what replayed or misdirected packets of the real peer can look like. Every attack must be dropped, moves
exactly its counter by exactly its number of segments, and changes nothing else at the victim.

Not here: replays of whole captures, which depend on the transfer (tests/robustness/test_replays.py), and bytes that
are no packet at all (tests/robustness/test_hostile_sockets.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transport.completion import Status
from transport.connection import Connection
from transport.control import (
    FETCH_ADD,
    OP_READ_RESPONSE,
    OP_SEND,
    Ack,
    Atomic,
    AtomicReply,
    Close,
    Control,
    Credit,
    Demand,
    Msg,
    Nack,
    Probe,
    ProbeReply,
    ReadReq,
    Receive,
    RecvAdvert,
    Reject,
    Retire,
    Retired,
    Terminate,
)
from transport.dormant import awaken
from transport.packet import CNP, CONTROL, DATA, DATAGRAM, ECT_0, PSN_MASK, SEQ_MASK, Packet
from transport.placement import Access, MemoryRegion

STRANGER = bytes([10, 9, 9, 9])
#: Bytes of the victim's regions that attacks aim at.
SIZE = 64
#: Numbers that break what is not checked.
ODD_ADDRESSES = (0, 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - SIZE, (1 << 64) - 1)


class Scene:
    """The victim, as a stranger aims at it.

    victim: the connection under attack. writable, readable: regions of its protection domain that the peer may write
    and may only read; alien: a writable region of another domain of the same endpoint; single: the key of a receive of
    another connection. All hold zeros, and no attack may change that.
    """

    def __init__(self, victim: Connection, seed: int) -> None:
        self.victim = victim
        self.rng = random.Random(seed)
        if victim.dormant is not None:
            awaken(victim)
        endpoint, domain = victim.endpoint, victim.context.domain
        self.memories = [bytearray(SIZE) for _ in range(4)]
        self.writable = domain.register(self.memories[0], Access.LOCAL_WRITE | Access.REMOTE_WRITE)
        self.readable = domain.register(self.memories[1], Access.REMOTE_READ)
        alien = endpoint.protection_domain()
        self.alien = alien.register(self.memories[2], Access.LOCAL_WRITE | Access.REMOTE_WRITE)
        self.single = domain.expose(self.memories[3], int(Access.LOCAL_WRITE | Access.REMOTE_WRITE), victim.qpn ^ 1)

    def packet(self, kind: int) -> Packet:
        """From the peer, to the victim, by any source port, without a tag."""
        context = self.victim.context
        packet = Packet()
        packet.kind = kind
        packet.dst, packet.src = context.planes[0]
        packet.qpn = context.qpn
        packet.src_qpn = context.peer_qpn
        packet.entropy = self.rng.randrange(1, 1 << 16)
        packet.psn = self.rng.randrange(PSN_MASK + 1)
        packet.ack_request = True
        packet.ecn = ECT_0
        packet.tag = (context.tag_in + self.rng.randrange(1, 1 << 32)) & 0xFFFFFFFF
        return packet

    def data(self, distance: int, length: int = 8, region: MemoryRegion | None = None) -> Packet:
        """Data for a segment `distance` beyond the edge, into `region` if one is given."""
        packet = self.packet(DATA)
        packet.seq = (self.victim.receiver.ledger.edge + distance) & SEQ_MASK
        packet.payload = b"\xee" * length
        packet.segment = packet.stride = packet.length = length
        target = region or self.writable
        packet.rkey, packet.address = target.rkey, target.address
        return packet

    def ahead(self) -> int:
        """A place in the window that the peer has not reached."""
        window = self.victim.receiver.ledger.window
        return window - 1 - self.rng.randrange(window // 4)

    def control(self, control: Control, tagged: bool = False) -> Packet:
        """A control packet, with the right tag if `tagged`."""
        kind = CONTROL if isinstance(control, _RELIABLE) else DATAGRAM
        packet = self.packet(kind)
        if kind == CONTROL:
            packet.seq = (self.victim.channel.edge_in + self.rng.randrange(4)) & SEQ_MASK
        packet.control = control
        if tagged:
            packet.tag = self.victim.context.tag_in
        return packet

    def ack(self, **changes: Any) -> Ack:
        """An ACK of everything that the victim has had acknowledged already, with `changes`."""
        sender, channel = self.victim.sender, self.victim.channel
        ack = Ack()
        ack.edge = ack.base = sender.una & SEQ_MASK
        ack.control_edge = channel.una & SEQ_MASK
        for name, value in changes.items():
            setattr(ack, name, value)
        return ack


_RELIABLE = (Msg, RecvAdvert, ReadReq, Atomic, AtomicReply, Terminate, Close, Retire, Retired)


@dataclass(frozen=True)
class Attack:
    """One kind of hostile packet. counter: of the victim's endpoint, moved by the packet's number of segments."""

    name: str
    counter: str
    make: Callable[[Scene], Packet]

    def __repr__(self) -> str:
        return self.name


def _changed(packet: Packet, **changes: Any) -> Packet:
    for name, value in changes.items():
        setattr(packet, name, value)
    return packet


def _wrong_tag(scene: Scene) -> Packet:
    """Any control payload at all, with every wrong tag that suggests itself."""
    rng, victim = scene.rng, scene.victim
    region = scene.writable
    number = rng.getrandbits(32)
    forged = scene.control(
        rng.choice(
            (
                Msg(victim.receiver.head & SEQ_MASK, OP_SEND, number, 0, 4, 0, b"evil"),
                Msg(number, OP_READ_RESPONSE, number, 1, 4),
                RecvAdvert(victim.sender.starter.next_advert & SEQ_MASK, (Receive(1, 2, 1 << 20),)),
                RecvAdvert(0, ()),
                ReadReq(0, 0, scene.readable.rkey, scene.readable.address, SIZE, 1, 2),
                Atomic(0, FETCH_ADD, 0, region.rkey, region.address, 1),
                AtomicReply(number, number),
                Terminate(Status.REM_OP_ERR, rng.randrange(3), number),
                Close(number, number),
                Retire(0, victim.qpn),
                Retired(0, victim.qpn, 2),
                scene.ack(edge=victim.sender.next & SEQ_MASK),
                Nack(victim.sender.una & SEQ_MASK, number & PSN_MASK, 0xC000),
                Reject(victim.sender.una & SEQ_MASK, region.rkey, region.address, Status.REM_ACCESS_ERR),
                Probe(number, 0xC000),
                ProbeReply(number, 0xC000, 0, True),
                Demand(number),
                Credit(number),
            )
        )
    )
    context = victim.context
    wrong = [tag for tag in (0, 0xFFFFFFFF, context.tag_in ^ 1, context.tag_out, forged.tag) if tag != context.tag_in]
    forged.tag = rng.choice(wrong)
    return forged


def _wrong_bounds(scene: Scene) -> Packet:
    region = scene.writable
    address, length = scene.rng.choice(
        (
            (region.address + SIZE - 7, 8),
            (region.address - 1, 8),
            (region.address + SIZE, 1),
            (region.address, SIZE + 1),
            *((odd, 8) for odd in ODD_ADDRESSES),
        )
    )
    return _changed(scene.data(scene.ahead(), length), address=address)


def _far(scene: Scene) -> Packet:
    window = scene.victim.receiver.ledger.window
    away = scene.rng.choice((0, 1, 1000, 1 << 24, (1 << 31) - 1 - 2 * window))
    ahead = scene.rng.random() < 0.5
    # The legitimate transfer moves the edge while the packet is on its way: leave it room on that side.
    return scene.data(2 * window + away if ahead else -window - 1 - away)


def _too_long(scene: Scene) -> Packet:
    segment = scene.victim.context.segment
    packet = scene.data(scene.ahead(), segment + 4)
    shape = scene.rng.randrange(3)
    if shape == 1:  # a run whose last segment is empty
        packet.count, packet.segment, packet.length = 2, segment, segment
    elif shape == 2:  # a run of segments that are not full
        packet.count, packet.segment, packet.length = 2, segment // 2, segment
    return packet


def _unsent(scene: Scene) -> Packet:
    """ACKs of what was never sent, and ones that contradict themselves."""
    sender, channel = scene.victim.sender, scene.victim.channel
    beyond = sender.next - sender.una + sender.context.window  # however far the sender gets meanwhile
    wide = b"\xff" * (beyond // 8 + 2)
    edge, una = (sender.una + beyond + 1) & SEQ_MASK, sender.una & SEQ_MASK
    return scene.control(
        scene.rng.choice(
            (
                scene.ack(edge=edge),
                scene.ack(edge=(sender.una + (1 << 31) - 1 - beyond) & SEQ_MASK),
                scene.ack(bits=8 * len(wide), received=wide, marked=wide),
                scene.ack(base=(una + beyond) & SEQ_MASK, bits=1, received=b"\1", marked=b"\0"),
                scene.ack(base=(una + 1) & SEQ_MASK),  # behind a hole that no bitmap speaks of
                scene.ack(bits=65535, received=b"\xff" * 8192, marked=bytes(8192)),  # the widest that can be said
                scene.ack(bits=64, received=b"\1", marked=b"\1", base=(una - 64) & SEQ_MASK),  # shorter than it says
                scene.ack(control_edge=(channel.una + 257) & SEQ_MASK),
                scene.ack(control_edge=(channel.next + 128) & SEQ_MASK, control_received=b"\xff" * 16),
            )
        ),
        tagged=True,
    )


#: By strangers who know addresses, queue pair number, keys and sequence numbers, and not the tag.
UNTAGGED: tuple[Attack, ...] = (
    Attack(
        "wrong queue pair number",
        "dropped_unknown_qpn",
        lambda scene: _changed(
            scene.data(0), qpn=scene.rng.choice((0, 1, scene.victim.qpn ^ 1, scene.victim.qpn ^ 1 << 23))
        ),
    ),
    Attack("another source address", "dropped_wrong_address", lambda scene: _changed(scene.data(0), src=STRANGER)),
    Attack(
        "control from another source address",
        "dropped_wrong_address",
        lambda scene: _changed(scene.control(Close(0, 0), tagged=True), src=STRANGER),
    ),
    Attack("forged congestion notification", "dropped_cnp", lambda scene: scene.packet(CNP)),
    Attack("control without the tag", "dropped_wrong_tag", _wrong_tag),
    Attack(
        "zero bytes without the tag",
        "dropped_wrong_tag",
        lambda scene: _changed(scene.data(scene.ahead(), 0), rkey=scene.writable.rkey),
    ),
    Attack(
        "unknown key",
        "dropped_bad_key",
        lambda scene: _changed(scene.data(scene.ahead()), rkey=scene.rng.choice((0, 1, scene.writable.rkey ^ 1))),
    ),
    Attack(
        "key of another domain",
        "dropped_bad_key",
        lambda scene: scene.data(scene.ahead(), region=scene.alien),
    ),
    Attack(
        "key without the right to write",
        "dropped_bad_key",
        lambda scene: scene.data(scene.ahead(), region=scene.readable),
    ),
    Attack(
        "key of another connection's receive",
        "dropped_bad_key",
        lambda scene: scene.data(scene.ahead(), region=scene.single),
    ),
    Attack("bounds, also around the end of memory", "dropped_bad_key", _wrong_bounds),
    Attack("data far outside the window", "dropped_outside_window", _far),
    Attack("lengths that contradict each other", "dropped_bad_length", _too_long),
)

#: With the right tag: what the peer of an earlier moment, or a broken one, can send without doing any harm.
TAGGED: tuple[Attack, ...] = (
    Attack("acknowledgement of what was never sent", "dropped_bad_ack", _unsent),
    Attack(
        "control far outside the window",
        "dropped_outside_window",
        lambda scene: _changed(
            scene.control(Close(0, 0), tagged=True),
            seq=(scene.victim.channel.edge_in + scene.rng.choice((1 << 20, (1 << 31) - 1024, -(1 << 20)))) & SEQ_MASK,
        ),
    ),
    Attack(
        "reply to no probe",
        "dropped_bad_probe",
        lambda scene: scene.control(
            ProbeReply(scene.rng.getrandbits(64), 0xC000, scene.rng.getrandbits(32), True), tagged=True
        ),
    ),
    Attack(
        "refusal of what was never sent",
        "dropped_bad_reject",
        lambda scene: scene.control(
            Reject((scene.victim.sender.una + scene.rng.choice((-1, 1 << 20))) & SEQ_MASK, 5, 6, Status.REM_ACCESS_ERR),
            tagged=True,
        ),
    ),
    Attack(
        "trimming of what was never sent",
        "dropped_bad_control",
        lambda scene: scene.control(
            Nack((scene.victim.sender.una - 1) & SEQ_MASK, scene.rng.getrandbits(24), 0xC000), tagged=True
        ),
    ),
    Attack(
        "credit that nobody asked for",
        "dropped_bad_control",
        lambda scene: scene.control(scene.rng.choice((Demand, Credit))(scene.rng.getrandbits(63)), tagged=True),
    ),
)

ALL = UNTAGGED + TAGGED

#: Counters that no legitimate packet moves, on any network.
DROPS: tuple[str, ...] = (
    "dropped_unknown_qpn", "dropped_wrong_address", "dropped_wrong_state", "dropped_wrong_tag",
    "dropped_outside_window", "dropped_bad_key", "dropped_bad_length", "dropped_bad_ack", "dropped_bad_control",
    "dropped_bad_probe", "dropped_bad_reject", "dropped_cnp",
)  # fmt: skip


def state_of(connection: Connection) -> tuple[Any, ...]:
    """Everything of a connection that a stranger must not move."""
    ledger, channel, receiver = connection.receiver.ledger, connection.channel, connection.receiver
    sender, recovery, starter = connection.sender, connection.recovery, connection.sender.starter
    paths = connection.context.paths
    return (
        connection.state, connection.error, connection.closing.begun, connection.closing.peer_closed,
        ledger.edge, ledger.top, ledger.duplicates, ledger.marked_packets, channel.edge_in, channel.seen, channel.next,
        channel.una, receiver.head, receiver.advertised, len(receiver.queue), len(receiver.answers),
        sender.next, sender.una, sender.in_flight, len(sender.queue), list(sender.missing), recovery.expirations,
        recovery.acked_at, recovery.heard_at, recovery.duplicates, recovery.reorder_quarters, starter.next_advert,
        list(starter.adverts), dict(starter.early_adverts), list(starter.reads), len(connection.responder.pending),
        connection.context.control.window, connection.context.control.rate, paths.srtt, paths.min_rtt, paths.generation,
        [(path.state, path.heard_at) for path in paths.paths],
    )  # fmt: skip

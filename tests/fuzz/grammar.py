"""Hostile packets by the million: random bytes, valid datagrams that were damaged, and control with odd numbers.

Everything follows from the `random.Random` that is handed in. Numbers come from near what the victim has (edges,
windows, keys, outstanding numbers), from the limits of their types, or from anywhere.
"""

from __future__ import annotations

import random

from transport.completion import Status
from transport.connection import Connection
from transport.control import (
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
from transport.packet import CONTROL, DATA, DATAGRAM, Packet

ODD32 = (0, 1, 2, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFE, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
ODD64 = (*ODD32, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 4096, (1 << 64) - 1)
ODD_LENGTHS = (0, 1, 7, 8, 255, 256, 257, 1023, 1024, 1025, 65536, 1 << 32, (1 << 63) - 1)
_STATUSES = tuple(Status)
_ODD_BYTES = (0, 1, 0x7F, 0x80, 0xFF)
_M32 = 0xFFFFFFFF


class Grammar:
    """Makes control and data aimed at one connection, with all that the peer of it knows: tag, keys, numbers.

    region: of the victim's domain that is open for everything.
    """

    def __init__(self, rng: random.Random, victim: Connection, address: int, rkey: int) -> None:
        self.rng = rng
        self.victim = victim
        self.address = address
        self.rkey = rkey
        self.bits = rng.getrandbits
        #: What ends the victim at once, if it is not to be believed, is rarer.
        self.makers = (
            (self._ack, self._advert, self._atomic_reply, self._nack, self._probe, self._probe_reply) * 4
            + (self._msg, self._read, self._atomic, self._reject, self._credit, self._retire) * 2
            + (self._end,)
        )

    def control(self) -> Control:
        """Any control payload that has an encoding."""
        makers = self.makers
        return makers[self.bits(16) % len(makers)]()

    def packet(self, tagged: bool = True) -> Packet:
        """A data or control packet from the victim's peer. Without the tag, keys are random too."""
        rng, victim = self.rng, self.victim
        context = victim.context
        packet = Packet()
        packet.dst, packet.src = context.planes[0]
        packet.qpn = context.qpn
        packet.src_qpn = context.peer_qpn
        packet.entropy = self.bits(16)
        packet.psn = self.bits(24)
        packet.ecn = self.bits(2)
        packet.ack_request = self.bits(1) == 1
        if self.bits(2) == 0:
            self._data(packet, tagged)
            return packet
        packet.tag = context.tag_in if tagged else (context.tag_in + 1 + rng.randrange(_M32)) & _M32
        packet.control = self.control()
        packet.kind = DATAGRAM if isinstance(packet.control, _UNRELIABLE) else CONTROL
        if self.bits(6) == 0:  # of the wrong kind for its payload: no Nic would hand it over
            packet.kind = CONTROL + DATAGRAM - packet.kind
        packet.seq = self.near(victim.channel.edge_in if victim.channel is not None else 0)
        return packet

    def near(self, number: int) -> int:
        """32 bits: mostly close to `number`, sometimes a window away, or odd, or anything."""
        way = self.bits(3)
        if way < 5:
            return (number + self.bits(3) - 2) & _M32
        if way == 5:
            return (number + self.bits(9) - 256) & _M32
        if way == 6:
            return ODD32[self.bits(8) % len(ODD32)]
        return self.bits(32)

    def _data(self, packet: Packet, tagged: bool) -> None:
        victim = self.victim
        packet.kind = DATA
        packet.seq = self.near(victim.receiver.ledger.edge if victim.receiver is not None else 0)
        segment = victim.context.segment
        packet.segment = packet.stride = segment
        if self.bits(2) == 0:
            packet.count = 1 + self.bits(3)
            packet.length = packet.count * segment - self.bits(10)
        else:
            packet.length = (0, 1, 8, segment, segment + 4, self.bits(10))[self.bits(8) % 6]
        packet.payload = bytes(max(packet.length, 0) + segment)
        packet.rkey = self._key() if tagged else self.bits(32)
        packet.address = self._address()
        if tagged and packet.length == 0 and self.bits(1):
            packet.rkey = victim.context.tag_in

    def _key(self) -> int:
        return self.rkey if self.bits(2) else self.bits(32)

    def _address(self) -> int:
        way = self.bits(2)
        if way < 2:
            return self.address + self.bits(12)
        return ODD64[self.bits(8) % len(ODD64)] if way == 2 else self.bits(64)

    def _length(self) -> int:
        way = self.bits(2)
        if way < 2:
            return self.bits(12)
        return ODD_LENGTHS[self.bits(8) % len(ODD_LENGTHS)] if way == 2 else self.bits(63)

    def _ack(self) -> Ack:
        ack, victim, bits = Ack(), self.victim, self.bits
        una = csn = 0
        if victim.sender is not None:
            una = (victim.sender.una, victim.sender.next)[bits(1)]
            csn = (victim.channel.una, victim.channel.next)[bits(1)]
        ack.edge = self.near(una)
        ack.base = self.near(ack.edge)
        if bits(1):
            ack.bits = bits((4, 7, 12)[bits(8) % 3])
        size = (ack.bits + 7) >> 3
        mask = (1 << ack.bits) - 1
        ack.received = (bits(8 * size + 1) & mask).to_bytes(size, "little")
        ack.marked = (bits(8 * size + 1) & mask).to_bytes(size, "little")
        ack.control_edge = self.near(csn)
        ack.control_received = bits(128).to_bytes(16, "little")[: bits(4) if bits(1) else 0]
        ack.trigger_space = bits(1)
        ack.trigger_seq = self.near(una)
        ack.trigger_psn = (victim.context.psn - bits(4)) & 0xFFFFFF
        ack.trigger_entropy = bits(16)
        ack.hold = bits((0, 10, 32)[bits(8) % 3]) * 1000
        ack.duplicates = self.near(0)
        ack.last_duplicate = bits(32)
        ack.marked_packets = bits(32)
        ack.marked_bytes = bits(63)
        return ack

    def _msg(self) -> Msg:
        victim, bits = self.victim, self.bits
        edge = head = read = 0
        if victim.receiver is not None:
            edge, head, read = victim.receiver.ledger.edge, victim.receiver.head, victim.sender.starter.next_read
        op = bits(2)
        number = self.near(read - 1 if op == 3 else head)
        inline = None
        length = self._length()
        count = max(1, -(-length // victim.context.segment)) & _M32 if bits(1) else self.near(0)
        if bits(1):
            length = bits(8)
            inline, count = bytes(length), 0 if bits(2) else count
        return Msg(number, op, self.near(edge), count, length, bits(32), inline)

    def _advert(self) -> RecvAdvert:
        victim, bits = self.victim, self.bits
        following = victim.sender.starter.next_advert if victim.sender is not None else 0
        receives = tuple(
            Receive(self.bits(32), self._address(), self._length()) for _ in range(bits(2) if bits(3) else bits(5))
        )
        return RecvAdvert(self.near(following), receives)

    def _read(self) -> ReadReq:
        edge = self.victim.receiver.ledger.edge if self.victim.receiver is not None else 0
        return ReadReq(
            self.bits(32), self.near(edge), self._key(), self._address(), self._length(), self.bits(32), self._address()
        )

    def _atomic(self) -> Atomic:
        edge = self.victim.receiver.ledger.edge if self.victim.receiver is not None else 0
        number, op = self.bits(32), self.bits(1)
        return Atomic(number, op, self.near(edge), self._key(), self._address() & ~7, self.bits(64), self.bits(64))

    def _atomic_reply(self) -> AtomicReply:
        read = self.victim.sender.starter.next_read if self.victim.sender is not None else 0
        return AtomicReply(self.near(read - 1), self.bits(64))

    def _nack(self) -> Nack:
        una = self.victim.sender.una if self.victim.sender is not None else 0
        return Nack(
            self.near(una), (self.victim.context.psn - self.bits(4)) & 0xFFFFFF, self.bits(16), self.bits(8) % 2
        )

    def _reject(self) -> Reject:
        una = self.victim.sender.una if self.victim.sender is not None else 0
        return Reject(self.near(una), self._key(), self._address(), _STATUSES[self.bits(8) % len(_STATUSES)])

    def _probe(self) -> Probe:
        return Probe(self.bits(64), self.bits(16))

    def _probe_reply(self) -> ProbeReply:
        outstanding = self.victim.context.peer.prober.outstanding if self.victim.context.peer is not None else {}
        nonce = next(iter(outstanding), 0) if self.bits(1) else self.bits(64)
        paths = self.victim.context.paths.paths
        return ProbeReply(nonce, paths[self.bits(8) % len(paths)].entropy, self.bits(32) * 1000, self.bits(1) == 1)

    def _credit(self) -> Control:
        return Demand(self.bits(63), self.bits(63), self.bits(63)) if self.bits(1) else Credit(self.bits(63))

    def _retire(self) -> Control:
        if self.bits(1):
            return Retire(self.bits(16), self.bits(24))
        return Retired(self.bits(16), self.bits(24), self.bits(24))

    def _end(self) -> Control:
        if self.bits(1):
            return Close(self.bits(32), self.bits(32))
        return Terminate(_STATUSES[self.bits(8) % len(_STATUSES)], self.bits(8) % 3, self.near(0))


_UNRELIABLE = (Ack, Nack, Reject, Probe, ProbeReply, Demand, Credit)


def damage(rng: random.Random, data: bytes) -> bytearray:
    """A datagram with one to four things wrong: bits, bytes, odd numbers, its end, or its order."""
    broken = bytearray(data)
    for _ in range(1 + rng.getrandbits(2)):
        size = len(broken)
        if not size:
            return broken
        way = rng.getrandbits(3)
        at = int(rng.random() * size)
        if way < 2:
            broken[at] ^= 1 << rng.getrandbits(3)
        elif way == 2:
            broken[at] = rng.getrandbits(8)
        elif way == 3:
            broken[at] = _ODD_BYTES[rng.getrandbits(8) % len(_ODD_BYTES)]
        elif way == 4:
            broken[at : at + 4] = ODD32[rng.getrandbits(8) % len(ODD32)].to_bytes(4)
        elif way == 5:
            del broken[at:]
        elif way == 6:
            broken[at:at] = rng.randbytes(4 * (1 + rng.getrandbits(2)))
        else:
            part = broken[at : at + 8]
            other = int(rng.random() * size)
            broken[other : other + len(part)] = part
    return broken

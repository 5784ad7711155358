"""Hypothesis strategies for everything that has bytes on the wire."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from transport.completion import Status
from transport.control import (
    CMP_SWAP,
    OP_READ_RESPONSE,
    OUT_OF_ORDER,
    TRIMMED,
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
from transport.packet import CNP, CONTROL, DATA, DATAGRAM, Packet


def number(bits: int) -> st.SearchStrategy[int]:
    """An unsigned number, its limits often."""
    limit = (1 << bits) - 1
    return st.sampled_from([0, 1, limit - 1, limit, limit // 2, limit // 2 + 1]) | st.integers(0, limit)


u16, u24, u32, u64 = number(16), number(24), number(32), number(64)
sizes = number(63)
holds = st.integers(0, 0xFFFFFFFF).map(lambda ns: ns * 1000)
statuses = st.sampled_from(list(Status))


@st.composite
def acks(draw: Any, max_bits: int = 600) -> Ack:
    ack = Ack()
    ack.bits = draw(st.integers(0, max_bits))
    size = (ack.bits + 7) // 8
    mask = (1 << ack.bits) - 1
    ack.received = (int.from_bytes(draw(st.binary(min_size=size, max_size=size)), "little") & mask).to_bytes(
        size, "little"
    )
    ack.marked = (int.from_bytes(draw(st.binary(min_size=size, max_size=size)), "little") & mask).to_bytes(
        size, "little"
    )
    ack.control_received = draw(st.binary(max_size=16))
    for name in ("edge", "base", "control_edge", "trigger_seq", "marked_packets", "duplicates", "last_duplicate"):
        setattr(ack, name, draw(u32))
    ack.trigger_space = draw(st.integers(0, 1))
    ack.trigger_psn = draw(u24)
    ack.trigger_entropy = draw(u16)
    ack.hold = draw(holds)
    ack.marked_bytes = draw(sizes)
    return ack


@st.composite
def msgs(draw: Any) -> Msg:
    inline = draw(st.none() | st.binary(max_size=256))
    length = draw(sizes) if inline is None else len(inline)
    op = draw(st.integers(0, OP_READ_RESPONSE))
    return Msg(draw(u32), op, draw(u32), draw(u32), length, draw(u32), inline)


receives = st.builds(Receive, u32, u64, sizes)
reliable: st.SearchStrategy[Control] = st.one_of(
    msgs(),
    st.builds(RecvAdvert, u32, st.lists(receives, max_size=12).map(tuple)),
    st.builds(ReadReq, u32, u32, u32, u64, sizes, u32, u64),
    st.builds(Atomic, u32, st.integers(0, CMP_SWAP), u32, u32, u64, u64, u64),
    st.builds(AtomicReply, u32, u64),
    st.builds(Terminate, statuses, st.integers(0, 2), u32),
    st.builds(Close, u32, u32),
    st.builds(Retire, u16, u24),
    st.builds(Retired, u16, u24, u24),
)
unreliable: st.SearchStrategy[Control] = st.one_of(
    acks(),
    st.builds(Nack, u32, u24, u16, st.sampled_from([TRIMMED, OUT_OF_ORDER])),
    st.builds(Reject, u32, u32, u64, statuses),
    st.builds(Probe, u64, u16),
    st.builds(ProbeReply, u64, u16, holds, st.booleans()),
    st.builds(Demand, sizes, sizes, sizes),
    st.builds(Credit, sizes),
)


@st.composite
def packets(
    draw: Any, kinds: tuple[int, ...] = (DATA, CONTROL, DATAGRAM, CNP), families: tuple[int, ...] = (4, 16)
) -> Packet:
    """A packet of any kind; a data packet may be a run whose payload lies with gaps somewhere in a buffer."""
    packet = Packet()
    packet.kind = draw(st.sampled_from(kinds))
    family = draw(st.sampled_from(families))
    packet.src = draw(st.binary(min_size=family, max_size=family))
    packet.dst = draw(st.binary(min_size=family, max_size=family))
    packet.entropy = draw(u16)
    packet.qpn = draw(u24)
    packet.src_qpn = draw(u24)
    packet.psn = draw(u24)
    packet.tag = draw(u32)
    packet.ecn = draw(st.integers(0, 3))
    packet.priority = draw(st.integers(0, 1))
    packet.ack_request = draw(st.booleans())
    packet.solicited = draw(st.booleans())
    if packet.kind in (DATA, CONTROL):
        packet.seq = draw(u32)
    if packet.kind == CONTROL:
        packet.control = draw(reliable)
    elif packet.kind == DATAGRAM:
        packet.control = draw(unreliable)
    elif packet.kind == DATA:
        packet.rkey = draw(u32)
        packet.address = draw(u64)
        packet.count = draw(st.integers(1, 4))
        packet.segment = draw(st.integers(1, 300))
        last = draw(st.integers(0 if packet.count == 1 else 1, packet.segment))
        packet.length = (packet.count - 1) * packet.segment + last
        packet.stride = packet.segment + draw(st.integers(0, 40))
        packet.offset = draw(st.integers(0, 40))
        packet.payload = draw(st.randoms(use_true_random=False)).randbytes(packet.offset + packet.count * packet.stride)
    return packet


#: Fields that travel with every packet; a segment of a run has them as Packet.split gives them.
COMMON = (
    "kind",
    "src",
    "dst",
    "entropy",
    "qpn",
    "psn",
    "seq",
    "rkey",
    "length",
    "ecn",
    "priority",
    "ack_request",
    "solicited",
)


def assert_same(found: Packet, packet: Packet, index: int, ud: bool = False) -> None:
    """`found` is what a receiver must see of segment `index` of `packet`."""
    sent = packet.split(index, 1) if packet.kind == DATA else packet
    assert {name: getattr(found, name) for name in COMMON} == {name: getattr(sent, name) for name in COMMON}
    assert found.count == 1
    assert found.control == sent.control
    if packet.kind == DATA:
        assert found.address == sent.address & (1 << 64) - 1
        view, expected = found.segment_payload(0), sent.segment_payload(0)
        assert view is not None
        assert expected is not None
        assert view == expected
        assert found.segment == found.length
    if packet.kind in (CONTROL, DATAGRAM) or (ud and packet.kind == DATA):
        assert found.tag == sent.tag
    if ud and packet.kind != CNP:
        assert found.src_qpn == sent.src_qpn

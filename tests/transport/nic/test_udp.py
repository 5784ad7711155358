"""What only Linux's sockets do: ECN and DSCP on each datagram, the kernel's count of losses, and both leaves."""

from __future__ import annotations

import errno
from types import ModuleType

import pytest

from tests.transport.nic.helpers import ALICE, BOB, LEAVES, SIX, A, B, Open, data, plain_socket, probe, receive_segments
from transport.errors import NicError
from transport.nic import udp
from transport.nic.udp import UdpNic, free_entropies
from transport.packet import CE, CLASS_CONTROL, CLASS_DATA, ECT_0, ECT_1, NOT_ECT
from transport.wire import ROCE_PORT

pytestmark = pytest.mark.xdist_group("ports")


@pytest.fixture(params=LEAVES, ids=lambda leaf: "compiled" if leaf.COMPILED else "plain")
def leaf(request: pytest.FixtureRequest) -> ModuleType:
    module = request.param
    assert isinstance(module, ModuleType)
    return module


@pytest.fixture
def kind(leaf: ModuleType, monkeypatch: pytest.MonkeyPatch) -> type[UdpNic]:
    monkeypatch.setattr(udp, "_mmsg", leaf)
    return UdpNic


@pytest.mark.parametrize("ecn", [NOT_ECT, ECT_1, ECT_0, CE])
@pytest.mark.parametrize(("priority", "dscp"), [(CLASS_DATA, 26), (CLASS_CONTROL, 48)])
def test_ecn_and_dscp_on_the_wire_and_back(nic: Open, ecn: int, priority: int, dscp: int) -> None:
    alice = nic(ALICE)
    packet = data(A, B)
    packet.ecn, packet.priority = ecn, priority
    with plain_socket(BOB) as far:
        alice.send([packet])
        _, ancillary, _, _ = far.recvmsg(8192, 64)
    assert [item[2][0] for item in ancillary] == [dscp << 2 | ecn]
    bob = nic(BOB)
    alice.send([packet])
    (received,) = receive_segments(bob, 1)
    assert (received.ecn, received.priority) == (ecn, priority)


@pytest.mark.parametrize(("name", "value"), [("ecn", CE), ("priority", CLASS_CONTROL)])
def test_another_mark_or_class_does_not_continue_a_run(pair: tuple[UdpNic, UdpNic], name: str, value: int) -> None:
    alice, bob = pair
    first, second = data(A, B, 10), data(A, B, 11)
    setattr(second, name, value)
    alice.send([first, second])
    received = receive_segments(bob, 2)
    assert [(packet.count, getattr(packet, name)) for packet in received] == [(1, getattr(first, name)), (1, value)]


def test_dscp_can_be_chosen(nic: Open) -> None:
    alice, bob = (nic(address, data_dscp=10, control_dscp=12) for address in (ALICE, BOB))
    alice.send([data(A, B), probe(A, B)])
    assert [packet.priority for packet in receive_segments(bob, 2)] == [CLASS_DATA, CLASS_CONTROL]
    assert bob.codec.traffic_class(data(A, B)) == 10 << 2 | ECT_0


def test_a_full_receive_buffer_is_seen_in_the_counters(nic: Open) -> None:
    alice, bob = nic(ALICE), nic(BOB, receive_buffer=1)
    for n in range(0, 640, 64):
        alice.send([data(A, B, n, 64)])
    arrived = 0
    while packets := bob.receive(64):
        arrived += sum(packet.count for packet in packets)
    counters = bob.counters()
    assert counters["overrun"] > 0
    assert arrived + counters["overrun"] == 640


def test_free_entropies_skip_what_is_in_use() -> None:
    with plain_socket(ALICE, 50011):
        assert free_entropies([ALICE], range(50010, 50020), 3) == [50010, 50012, 50013]
        with pytest.raises(NicError, match=r"only 1 of 2 source ports can be bound on 127\.1\.0\.1, 2 are needed"):
            free_entropies([ALICE], [50011, 50012], 2)
    assert free_entropies([BOB], [50011], 1) == [50011]


def test_an_oversized_datagram_is_an_error_of_the_leaf(leaf: ModuleType) -> None:
    with plain_socket(ALICE, 50001) as sock:
        sock.setblocking(False)
        sender = leaf.Sender(4, ROCE_PORT, 0)
        path = sender.register(sock)
        sender.add(path, B, 0, 0, b"small", None, b"")
        sender.add(path, B, 0, 1, bytes(40_000), memoryview(bytes(30_000)), b"")
        assert sender.send() == errno.EMSGSIZE
        assert (sender.failed, sender.pending, sender.stalled) == (B, 1, -1)
        sender.clear()
        assert (sender.pending, sender.room(), sender.send()) == (0, 4, 0)


def test_a_leaf_refuses_what_does_not_fit(leaf: ModuleType) -> None:
    with plain_socket(ALICE, 50001) as sock:
        sender = leaf.Sender(1, ROCE_PORT, 0)
        path = sender.register(sock)
        with pytest.raises(ValueError, match="family"):
            sender.add(path, SIX, 0, 0, b"", None, b"")
        with pytest.raises(IndexError):
            sender.add(path + 1, B, 0, 0, b"", None, b"")
        sender.add(path, B, 0, 0, b"", None, b"")
        with pytest.raises(IndexError):
            sender.add(path, B, 0, 0, b"", None, b"")
        with pytest.raises(ValueError, match="too small"):
            leaf.Receiver(sock, bytearray(100), 2, 51)


def test_a_leaf_lets_go_of_buffers_when_they_are_sent(leaf: ModuleType) -> None:
    with plain_socket(ALICE, 50001) as sock:
        sender = leaf.Sender(4, ROCE_PORT, 0)
        path = sender.register(sock)
        buffer = bytearray(b"payload")
        sender.add(path, B, 0, 0, b"", memoryview(buffer)[:3], b"")
        with pytest.raises(BufferError):
            buffer.append(1)
        assert sender.send() == 0
        buffer.append(1)

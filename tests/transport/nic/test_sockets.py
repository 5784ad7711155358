"""What every Nic on sockets does: what the far end sees, runs, backpressure and refusals, on each class and leaf."""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.transport.nic.helpers import (
    ALICE,
    BOB,
    ENTROPIES,
    SIX,
    A,
    B,
    Open,
    content,
    data,
    plain_socket,
    probe,
    receive_segments,
    segments,
)
from transport.clock import MS, SECOND
from transport.errors import ConfigError, LocalProtocolError, NicError
from transport.headers import RAW_IP
from transport.nic.dgram import DgramNic
from transport.nic.udp import BATCH, UdpNic
from transport.packet import CE, CLASS_CONTROL, CLASS_DATA, DATAGRAM, NOT_ECT, Packet
from transport.wire import EXACT, OFF, ROCE_PORT, Codec

pytestmark = pytest.mark.xdist_group("ports")


@pytest.mark.parametrize("length", [0, 1, 3, 4, 255, 4095, 4096])
def test_bytes_are_equal_at_the_far_end(pair: tuple[UdpNic, UdpNic], length: int) -> None:
    alice, bob = pair
    sent = data(A, B, 5, length=length)
    sent.ack_request = sent.solicited = True
    assert alice.send([sent]) == 1
    (received,) = receive_segments(bob, 1)
    assert content(received) == content(sent)
    for name in ("src", "dst", "entropy", "qpn", "seq", "psn", "rkey", "address", "ack_request", "solicited"):
        assert getattr(received, name) == getattr(sent, name), name
    assert received.ecn == (sent.ecn if bob.caps.ecn else NOT_ECT)
    assert received.received_at <= bob.now()


def test_control_arrives_as_the_same_record(pair: tuple[UdpNic, UdpNic]) -> None:
    alice, bob = pair
    alice.send([probe(A, B, 77)])
    (received,) = receive_segments(bob, 1)
    assert (received.kind, received.priority) == (DATAGRAM, CLASS_CONTROL if bob.caps.ecn else CLASS_DATA)
    assert received.control == probe(A, B, 77).control


@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_a_run_arrives_whole(pair: tuple[UdpNic, UdpNic], count: int) -> None:
    alice, bob = pair
    sent = data(A, B, 10, count, length=count * 4096 - 1000)
    sent.ack_request = True
    alice.send([sent])
    received = receive_segments(bob, count)
    assert segments(received) == segments([sent])
    assert [packet.ack_request for packet in received] == [False] * (len(received) - 1) + [True]


def test_segments_that_wait_together_are_one_run(pair: tuple[UdpNic, UdpNic]) -> None:
    alice, bob = pair
    sent = [data(A, B, 10 + n) for n in range(8)]
    alice.send(sent)
    bob.wait(bob.now() + 20 * SECOND)
    (run,) = bob.receive(64)
    assert (run.count, run.length, run.segment) == (8, 8 * 4096, 4096)
    assert segments([run]) == segments(sent)


def test_a_run_is_no_longer_than_allowed(nic: Open) -> None:
    alice, bob = nic(ALICE), nic(BOB, max_run=3)
    sent = data(A, B, 10, 8)
    alice.send([sent])
    received = bob.receive(64)
    assert [packet.count for packet in received] == [3, 3, 2]
    assert segments(received) == segments([sent])
    assert bob.caps.max_run == 3


def change(name: str, value: object) -> Callable[[Packet], None]:
    return lambda packet: setattr(packet, name, value)


@pytest.mark.parametrize(
    "change",
    [
        change("entropy", 50002), change("seq", 12), change("psn", 12), change("rkey", 1), change("qpn", 1),
        change("address", 0x10_0000_0000), change("address", 0x10_0000_0000 + 12 * 4096),
    ],
)  # fmt: skip
def test_what_does_not_continue_a_run_stays_apart(
    pair: tuple[UdpNic, UdpNic], change: Callable[[Packet], None]
) -> None:
    alice, bob = pair
    first, second = data(A, B, 10), data(A, B, 11)
    change(second)
    alice.send([first, second])
    received = receive_segments(bob, 2)
    assert [packet.count for packet in received] == [1, 1]
    assert sorted(segments(received)) == sorted(segments([first, second]))


@pytest.mark.parametrize("length", [100, 300, 0])
def test_a_short_segment_ends_a_run(pair: tuple[UdpNic, UdpNic], length: int) -> None:
    alice, bob = pair
    first = data(A, B, 10, length=length)
    second = data(A, B, 11, length=length)
    second.address = first.address + length
    alice.send([first, second])
    assert [packet.count for packet in receive_segments(bob, 2)] == [1, 1]


@pytest.mark.parametrize("flag", ["ack_request", "solicited"])
def test_a_flag_ends_a_run(pair: tuple[UdpNic, UdpNic], flag: str) -> None:
    alice, bob = pair
    sent = [data(A, B, 10 + n) for n in range(4)]
    setattr(sent[1], flag, True)
    alice.send(sent)
    received = receive_segments(bob, 4)
    assert [(packet.count, getattr(packet, flag)) for packet in received] == [(2, True), (2, False)]


def test_runs_continue_over_the_wrap_of_their_numbers(pair: tuple[UdpNic, UdpNic]) -> None:
    alice, bob = pair
    sent = data(A, B, 0, 4)
    sent.seq, sent.psn = 0xFFFFFFFE, 0xFFFFFE
    alice.send([sent])
    (run,) = bob.receive(64)
    assert (run.seq, run.psn, run.count) == (0xFFFFFFFE, 0xFFFFFE, 4)
    assert [packet[:2] for packet in segments([run])] == [
        (0xFFFFFFFE, 0xFFFFFE), (0xFFFFFFFF, 0xFFFFFF), (0, 0), (1, 1),
    ]  # fmt: skip


def test_a_bad_datagram_between_two_segments_ends_the_run(pair: tuple[UdpNic, UdpNic]) -> None:
    alice, bob = pair
    alice.send([data(A, B, 10)])
    with plain_socket(ALICE, 50009) as other:
        other.sendto(b"\0" * 64, (BOB, ROCE_PORT))
    alice.send([data(A, B, 11)])
    received = receive_segments(bob, 2)
    assert [packet.count for packet in received] == [1, 1]
    assert segments(received) == segments([data(A, B, 10), data(A, B, 11)])


def test_source_ports_at_the_far_end_are_the_entropies(nic: Open) -> None:
    alice = nic(ALICE)
    with plain_socket(BOB) as far:
        alice.send([data(A, B, n, 2, entropy=entropy) for n, entropy in enumerate(ENTROPIES)])
        names = [far.recvfrom(8192)[1] for _ in range(8)]
    assert sorted(names) == sorted([(ALICE, entropy) for entropy in ENTROPIES] * 2)


def test_order_is_kept_on_each_path(pair: tuple[UdpNic, UdpNic]) -> None:
    alice, bob = pair
    rng = random.Random(4)
    sent: list[Packet] = []
    serial = 0
    for _ in range(40):
        count = rng.randint(1, 5)
        sent.append(data(A, B, serial, count, entropy=rng.choice(ENTROPIES)))
        serial += count
    assert alice.send(sent) == 40
    received = receive_segments(bob, serial)
    for entropy in ENTROPIES:
        assert segments([packet for packet in received if packet.entropy == entropy]) == segments(
            [packet for packet in sent if packet.entropy == entropy]
        )


def test_more_segments_than_one_batch(pair: tuple[UdpNic, UdpNic]) -> None:
    alice, bob = pair
    sent = [data(A, B, 64 * n, 64, segment=256, entropy=ENTROPIES[n % 4]) for n in range(10)]
    assert alice.send(sent) == 10
    received = receive_segments(bob, 640)
    assert sorted(segments(received)) == sorted(segments(sent))
    assert alice.counters()["sent"] == bob.counters()["received"] == 640


def test_a_run_longer_than_a_batch_is_refused(nic: Open) -> None:
    alice = nic(ALICE)
    with pytest.raises(NicError, match=f"at most {BATCH}"):
        alice.send([data(A, B, 0, BATCH + 1, segment=256)])


def test_a_packet_that_cannot_be_encoded_leaves_nothing_behind(pair: tuple[UdpNic, UdpNic]) -> None:
    alice, bob = pair
    bad = data(A, B)
    bad.rkey = 1 << 32
    with pytest.raises(LocalProtocolError):
        alice.send([data(A, B, 1), bad])
    alice.send([data(A, B, 2)])
    assert [packet.seq for packet in receive_segments(bob, 1)] == [2]
    assert bob.receive(64) == []


def test_a_reply_leaves_by_the_source_port_of_its_trigger(nic: Open) -> None:
    alice, bob = nic(ALICE), nic(BOB, [50001])
    bob.send([probe(B, A, entropy=50777)])
    (received,) = receive_segments(alice, 1)
    assert received.entropy == 50777


def test_without_room_for_more_sockets_one_of_ours_stands_in(nic: Open) -> None:
    alice = nic(ALICE)
    bob = nic(BOB, [50001, 50002], max_sockets=3)
    for _ in range(2):
        bob.send([probe(B, A, entropy=entropy) for entropy in (50100, 50101, 50102, 0)])
    found = [packet.entropy for packet in receive_segments(alice, 8)]
    assert sorted(found) == sorted([50100, 50002, 50001, 50001] * 2)
    assert alice.counters()["bad_icrc"] == 0, "the ICRC is of the port that it left by"


def test_a_source_port_in_use_elsewhere_is_replaced_in_replies(nic: Open) -> None:
    alice, bob = nic(ALICE), nic(BOB, [50001])
    with plain_socket(BOB, 50500):
        bob.send([probe(B, A, entropy=50500)])
    assert [packet.entropy for packet in receive_segments(alice, 1)] == [50001]


def test_ipv6(nic: Open) -> None:
    if not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("no IPv6 here")
    both = nic("::1")
    sent = [data(SIX, SIX, 10, 5, entropy=50001, length=5 * 4096 - 7), probe(SIX, SIX, entropy=50002)]
    sent[0].ecn = CE
    assert both.send(sent) == 2
    received = receive_segments(both, 6)
    runs = [packet for packet in received if packet.kind != DATAGRAM]
    assert segments(runs) == segments(sent[:1])
    seen = CE if both.caps.ecn else NOT_ECT
    assert {(packet.src, packet.dst, packet.ecn, packet.entropy) for packet in runs} == {(SIX, SIX, seen, 50001)}
    others = [packet for packet in received if packet.kind == DATAGRAM]
    assert [packet.entropy for packet in others] == [50002]


def test_ipv6_port_in_use_is_named(nic: Open) -> None:
    if not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("no IPv6 here")
    nic("::1")
    with pytest.raises(NicError, match=r"\[::1\]:4791 is in use"):
        nic("::1")


def test_a_frame_on_the_wire_has_df_identification_0_and_an_exact_icrc(nic: Open) -> None:
    try:
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    except PermissionError:
        pytest.skip("raw sockets need a privilege")
    alice, _ = nic(ALICE), nic(BOB)
    with raw:
        raw.bind((BOB, 0))
        raw.settimeout(20)
        sent = data(A, B, 3, 3)
        alice.send([sent])
        frames: list[bytes] = []
        while len(frames) < 3:
            frame, name = raw.recvfrom(8192)
            if name[0] == ALICE and frame[20:24] == struct.pack(">HH", 50001, ROCE_PORT):
                frames.append(frame)
    assert {struct.unpack_from(">HH", frame, 4) for frame in frames} == {(0, 0x4000)}
    packets = [Codec(EXACT).parse_frame(frame, RAW_IP) for frame in frames]
    assert segments(packets) == segments([sent])


def test_datagrams_that_are_not_ours_are_counted_and_dropped(pair: tuple[UdpNic, UdpNic]) -> None:
    alice, bob = pair
    good = data(A, B)
    header, payload, trailer = alice.codec.encode(good, 0)
    assert payload is not None
    whole = bytearray(header + bytes(payload) + trailer)
    whole[100] ^= 1
    with plain_socket(ALICE, 50009) as other:
        other.sendto(b"", (BOB, ROCE_PORT))
        other.sendto(b"hello", (BOB, ROCE_PORT))
        other.sendto(os.urandom(8) + b"\x0f" * 40, (BOB, ROCE_PORT))
        other.sendto(whole, (BOB, ROCE_PORT))
        other.sendto(bytes(whole[:-8]), (BOB, ROCE_PORT))
        other.sendto(bytes(5000), (BOB, ROCE_PORT))
    alice.send([good])
    received = receive_segments(bob, 1)
    assert content(received[0]) == content(good)
    counters = bob.counters()
    assert (counters["malformed"], counters["bad_icrc"], counters["truncated"]) == (4, 1, 1)
    assert counters["received"] == 7


def test_without_icrc_flipped_bits_pass(nic: Open) -> None:
    alice, bob = nic(ALICE, icrc=OFF), nic(BOB, icrc=OFF)
    header, payload, trailer = alice.codec.encode(data(A, B), 0)
    assert payload is not None
    assert trailer[-4:] == b"\0\0\0\0"
    with plain_socket(ALICE, 50009) as other:
        other.sendto(header + b"\0" * len(payload) + trailer, (BOB, ROCE_PORT))
    (received,) = receive_segments(bob, 1)
    assert content(received) == bytes(4096)


def test_receive_takes_no_more_than_asked_for(pair: tuple[UdpNic, UdpNic]) -> None:
    alice, bob = pair
    alice.send([data(A, B, 2 * n) for n in range(5)])
    assert [len(bob.receive(2)) for _ in range(4)] == [2, 2, 1, 0]
    assert bob.receive(0) == []


class Full:
    """A stream, or local datagrams, between two sockets, used as the path of a source port: unlike UDP to this machine,
    it gets full."""

    def __init__(self, nic: UdpNic, entropy: int, folder: Path) -> None:
        if isinstance(nic, DgramNic):
            self.far = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.far.bind(str(folder / "far"))
            self.near = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.near.connect(str(folder / "far"))
        else:
            with socket.create_server(("127.0.0.1", 0)) as server:
                self.near = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                self.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
                self.near.connect(server.getsockname())
                self.far, _ = server.accept()
        self.near.setblocking(False)
        nic.paths[entropy] = nic.sender.register(self.near)

    def drain(self) -> None:
        self.far.setblocking(False)
        while True:
            try:
                self.far.recv(1 << 20)
            except BlockingIOError:
                return

    def close(self) -> None:
        self.far.close()


@pytest.fixture
def full(nic: Open, tmp_path: Path) -> Iterator[tuple[UdpNic, UdpNic, Full]]:
    alice, bob = nic(ALICE), nic(BOB)
    stream = Full(alice, 50999, tmp_path)
    yield alice, bob, stream
    stream.close()


def finish(alice: UdpNic, stream: Full, packets: list[Packet]) -> None:
    """Send all packets through a socket that gets full, and what the Nic kept before."""
    for _ in range(10_000):
        stream.drain()
        packets = packets[alice.send(packets) :]
        if not packets and not alice.sender.pending:
            return
        stream.drain()
        alice.wait(alice.now() + 20 * SECOND)
    raise AssertionError("still full")


def test_a_full_socket_takes_fewer_packets_and_the_rest_later(full: tuple[UdpNic, UdpNic, Full]) -> None:
    alice, bob, stream = full
    packets = [data(A, B, n, entropy=50999) for n in range(200)]
    total = 0
    while (taken := alice.send(packets)) == len(packets):
        total += taken
    total += taken
    assert taken < 200
    assert alice.counters()["sent"] == total - alice.sender.pending
    finish(alice, stream, [*packets[taken:], data(A, B, 901, entropy=50002)])
    assert [packet.seq for packet in receive_segments(bob, 1)] == [901]
    assert alice.counters()["sent"] == total + 200 - taken + 1


def test_a_run_that_was_partly_sent_counts_as_taken_and_is_finished_first(
    full: tuple[UdpNic, UdpNic, Full],
) -> None:
    alice, bob, stream = full
    runs, behind = 0, data(A, B, 7, entropy=50002)
    while not alice.sender.pending:
        taken = alice.send([data(A, B, 0, 200, entropy=50999), behind])
        runs += 1
        assert runs < 1000
        if taken == 2:
            assert [packet.seq for packet in receive_segments(bob, 1)] == [7]
    assert taken == 1, "what had not begun is given back"
    assert 200 * (runs - 1) < alice.sent - (runs - 1) < 200 * runs
    assert alice.send([behind]) == 0, "what was taken goes first"
    finish(alice, stream, [behind])
    assert alice.sent == 200 * runs + runs
    assert [packet.seq for packet in receive_segments(bob, 1)] == [7]


def test_what_was_overtaken_by_a_packet_that_left_is_kept(full: tuple[UdpNic, UdpNic, Full]) -> None:
    alice, bob, stream = full
    while not alice.sender.pending:
        # By socket: 1 and 3 leave by 50001, the run may get stuck, then 2 has not begun.
        taken = alice.send(
            [data(A, B, 1), data(A, B, 0, 200, entropy=50999), data(A, B, 2, entropy=50002), data(A, B, 3)]
        )
        if not alice.sender.pending:
            assert len(receive_segments(bob, 3)) == 3
    assert taken == 4
    finish(alice, stream, [])
    assert sorted(packet.seq for packet in receive_segments(bob, 3)) == [1, 2, 3]


def test_a_refused_datagram_names_both_ends_and_the_cause(nic: Open) -> None:
    alice, bob = nic(ALICE), nic(BOB)
    stranger = data(A, socket.inet_aton("192.0.2.1"))
    with pytest.raises(NicError, match=r"UDP from 127\.1\.0\.1 to 192\.0\.2\.1:4791: \w+"):
        alice.send([stranger])
    assert alice.send([data(A, B, 4)]) == 1
    assert [packet.seq for packet in receive_segments(bob, 1)] == [4]


def test_a_dead_peer_is_no_error(nic: Open) -> None:
    alice = nic(ALICE)
    for n in range(20):
        assert alice.send([data(A, B, n, 4)]) == 1
        assert alice.receive(64) == []


@pytest.mark.parametrize(
    ("packet", "text"),
    [(data(A, SIX), "address family"), (data(B, A), "cannot leave from 127.1.0.1")],
)
def test_addresses_must_fit(nic: Open, packet: Packet, text: str) -> None:
    alice = nic(ALICE)
    with pytest.raises(NicError, match=text):
        alice.send([packet])


def test_a_port_in_use_is_named_and_everything_is_closed_again(nic: Open) -> None:
    nic(ALICE)
    with pytest.raises(NicError, match=r"127\.1\.0\.1:4791 is in use"):
        nic(ALICE)
    with plain_socket(BOB, 50003), pytest.raises(NicError, match=r"127\.1\.0\.2:50003 is in use"):
        nic(BOB)
    nic(BOB)


def test_an_address_of_another_host_is_named(kind: type[UdpNic]) -> None:
    with pytest.raises(NicError, match=r"192\.0\.2\.1:4791 cannot be bound"):
        kind("192.0.2.1", [50001])


@pytest.mark.parametrize(
    ("address", "entropies", "knobs", "text"),
    [
        ("localhost", [50001], {}, "address = 'localhost'"),
        ("0.0.0.0", [50001], {}, "address = '0.0.0.0'"),
        ("::", [50001], {}, "address = '::'"),
        (ALICE, [], {}, "number of entropies = 0"),
        (ALICE, [0], {}, "entropy = 0"),
        (ALICE, [70000], {}, "entropy = 70000"),
        (ALICE, [50001, 50002], {"max_sockets": 1}, "number of entropies = 2"),
        (ALICE, [50001], {"mtu": 1500}, "mtu = 1500"),
        (ALICE, [50001], {"port": 0}, "port = 0"),
        (ALICE, [50001], {"max_run": 0}, "max_run = 0"),
        (ALICE, [50001], {"icrc": EXACT}, "icrc"),
        (ALICE, [50001], {"data_dscp": 64}, "data_dscp = 64"),
    ],
)
def test_a_bad_value_is_named(
    kind: type[UdpNic], address: str, entropies: list[int], knobs: dict[str, object], text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(address, entropies, **knobs)  # type: ignore[arg-type]
    assert text in str(caught.value)


@pytest.mark.parametrize("busy_poll", [False, True])
def test_a_wait_ends_at_its_time_or_when_something_comes(nic: Open, busy_poll: bool) -> None:
    alice, bob = nic(ALICE), nic(BOB, busy_poll=busy_poll)
    until = bob.now() + 3 * MS
    bob.wait(until)
    assert bob.now() >= until
    bob.wait(until)
    alice.send([data(A, B)])
    bob.wait(None)
    assert len(bob.receive(1)) == 1


def test_a_closed_nic_says_so_and_its_ports_are_free(nic: Open) -> None:
    alice = nic(ALICE)
    assert alice.fileno() >= 0
    alice.close()
    alice.close()
    for call in (lambda: alice.send([]), lambda: alice.receive(1), lambda: alice.wait(0), alice.counters):
        with pytest.raises(NicError, match="is closed"):
            call()
    nic(ALICE)

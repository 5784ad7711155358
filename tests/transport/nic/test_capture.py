"""Captures and traces of what crosses a Nic."""

from __future__ import annotations

from pathlib import Path

from tests.transport.nic.helpers import content, data, probe
from transport import pcapfile
from transport.clock import NEVER, US
from transport.nic.faults import FaultInjector, Faults
from transport.nic.loopback import LoopbackNic, Network
from transport.nic.pcap import PcapWriter
from transport.nic.tracer import Tracer
from transport.packet import CE, CLASS_CONTROL, DATA, DATAGRAM, Packet
from transport.wire import ID0, Codec

A, B = b"\x0a\0\0\1", b"\x0a\0\0\2"


def frames(path: Path) -> list[tuple[int, Packet]]:
    codec = Codec(ID0)
    return [(time, codec.parse_frame(frame)) for time, frame in pcapfile.read(path)[1]]


def test_a_capture_read_back_holds_every_segment(tmp_path: Path) -> None:
    network = Network(rate=0, delay=5 * US, start=US)
    bob = LoopbackNic(network, B)
    with pcapfile.PcapFile(tmp_path / "a.pcap") as file:
        alice = PcapWriter(LoopbackNic(network, A), file)
        sent = data(A, B, 7, 3, length=9000)
        sent.ack_request = True
        assert alice.send([sent, probe(A, B, 42)]) == 2
        network.advance(network.next_event())
        assert len(bob.receive(10)) == 2
        bob.send([data(B, A, 9, length=0)])
        network.advance(network.next_event())
        assert len(alice.receive(10)) == 1
    captured = frames(tmp_path / "a.pcap")
    assert [time for time, _ in captured] == [US] * 4 + [11 * US]
    packets = [packet for _, packet in captured]
    assert [packet.kind for packet in packets] == [DATA] * 3 + [DATAGRAM, DATA]
    assert b"".join(content(packet) for packet in packets[:3]) == content(sent)
    assert [(packet.seq, packet.ack_request) for packet in packets[:3]] == [(7, False), (8, False), (9, True)]
    assert packets[3].control == probe(A, B, 42).control
    assert packets[3].priority == CLASS_CONTROL
    assert (packets[4].src, packets[4].dst, packets[4].length) == (B, A, 0)


def test_one_direction_only(tmp_path: Path) -> None:
    network = Network(rate=0, delay=0)
    with pcapfile.PcapFile(tmp_path / "sent.pcap") as out, pcapfile.PcapFile(tmp_path / "received.pcap") as back:
        nic = PcapWriter(PcapWriter(LoopbackNic(network, A), out, received=False), back, sent=False)
        nic.send([data(A, A, 3)])
        assert len(nic.receive(1)) == 1
        nic.send([data(A, A, 4)])
    assert [packet.seq for _, packet in frames(tmp_path / "sent.pcap")] == [3, 4]
    assert [packet.seq for _, packet in frames(tmp_path / "received.pcap")] == [3]


def test_a_capture_inside_a_fault_injector_shows_what_went_out(tmp_path: Path) -> None:
    network = Network(rate=0, delay=0)
    with pcapfile.PcapFile(tmp_path / "a.pcap") as file:
        nic = FaultInjector(
            PcapWriter(LoopbackNic(network, A), file), Faults(loss=0.5, mark=1.0, delay_ps=3 * US), seed=1
        )
        nic.send([data(A, A, 0, 20, segment=256)])
        while nic.next_event() < NEVER:
            nic.wait(None)
            nic.receive(100)
    captured = frames(tmp_path / "a.pcap")
    sent = [time for time, _ in captured if time == 3 * US]
    assert len(sent) == len(captured) == 2 * (20 - nic.lost), "each once sent and once received"
    assert {packet.ecn for _, packet in captured} == {CE}


def test_a_trace_keeps_the_last_events_as_text() -> None:
    network = Network(rate=0, delay=0, start=2 * US)
    heard: list[str] = []
    nic = Tracer(LoopbackNic(network, A), events=3, callback=heard.append)
    nic.send([data(A, A, 1, 4), probe(A, A)])
    nic.receive(10)
    assert nic.lines() == heard[1:]
    assert len(heard) == 4
    assert heard[0] == ("2.000 us sent DATA 0a000001 path=50001 qpn=0x123456 seq=1 x4 psn=1 length=16384 ECT(0)")
    assert "Probe(nonce=1" in heard[1]
    assert [line.split()[2] for line in heard] == ["sent", "sent", "received", "received"]


def test_a_trace_holds_no_payload_and_later_changes_do_not_show() -> None:
    network = Network()
    nic = Tracer(LoopbackNic(network, A))
    packet = data(A, B, 5)
    nic.send([packet])
    packet.seq = 6
    assert packet.payload is not None
    assert "seq=5 " in nic.lines()[0]

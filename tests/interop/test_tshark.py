"""Wireshark's dissector on captures that we write. It does not check the ICRC; scapy and the kernel's frames do."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from transport import headers
from transport.completion import Status
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
from transport.packet import CE, CNP, CONTROL, DATA, DATAGRAM, ECT_0, Packet
from transport.pcapfile import PcapFile
from transport.wire import QKEY, Codec

TSHARK = shutil.which("tshark")
if TSHARK is None and not os.environ.get("CI"):
    pytest.skip("tshark is not installed", allow_module_level=True)

ADDRESSES = (
    (bytes([192, 168, 77, 1]), bytes([192, 168, 77, 2])),
    (bytes.fromhex("fd930000000000000000000000000001"), bytes.fromhex("fd930000000000000000000000000002")),
)
# An RC or UC SEND can look like NFS over RDMA to a heuristic of tshark.
DISSECTORS = ("--disable-protocol", "rpcordma")


def tshark(path: Path, *arguments: str) -> list[str]:
    assert TSHARK is not None, "tshark is not installed, and CI must have it"
    done = subprocess.run(
        [TSHARK, "-r", str(path), *DISSECTORS, *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def full_ack() -> Ack:
    ack = Ack()
    ack.bits = 77
    ack.received = bytes([0xFF] * 9 + [0x1F])
    ack.marked = bytes([0x81] * 9 + [0x01])
    ack.control_received = bytes(range(16))
    ack.edge, ack.base, ack.control_edge, ack.hold = 0x80000001, 0x80000000, 5, 1_500_000
    return ack


CONTROLS: tuple[Control, ...] = (
    Msg(1, 0, 0xFFFFFFFE, 3, 10000),
    Msg(2, 1, 7, 0, 3, imm=0xCAFE, inline=b"abc"),
    RecvAdvert(3, (Receive(4, 5, 6), Receive(7, 1 << 63, 1 << 32))),
    ReadReq(1, 2, 3, 4, 5, 6, 7),
    Atomic(1, 1, 2, 3, 8, 9, 10),
    AtomicReply(1, (1 << 64) - 1),
    Terminate(Status.REM_ACCESS_ERR, 1, 9),
    Close(1, 2),
    Retire(3, 0x123456),
    Retired(3, 0x123456, 0x654321),
    Ack(),
    full_ack(),
    Nack(1, 2, 0xC003),
    Nack(1, 2, 0xC003, 1),
    Reject(1, 2, 3, Status.REM_ACCESS_ERR),
    Probe(0x1122334455667788, 0xC004),
    ProbeReply(0x1122334455667788, 0xC004, 2_000_000, True),
    Demand(1 << 40, 1 << 20, 7),
    Credit(1 << 40),
)
UNRELIABLE = (Ack, Nack, Reject, Probe, ProbeReply, Demand, Credit)


def every_kind(src: bytes, dst: bytes) -> list[Packet]:
    packets = []
    for length in (0, 1, 2, 3, 4, 256, 4096):
        packet = Packet()
        packet.payload = bytes(i * 7 & 0xFF for i in range(length))
        packet.length = packet.segment = length
        packet.rkey, packet.address = 0xDEADBEEF, (1 << 63) + length
        packet.ecn = ECT_0
        packets.append(packet)
    for control in CONTROLS:
        packet = Packet()
        packet.kind = DATAGRAM if isinstance(control, UNRELIABLE) else CONTROL
        packet.control = control
        packet.priority = 1
        packets.append(packet)
    packet = Packet()
    packet.kind = CNP
    packet.ecn = CE
    packets.append(packet)
    for number, packet in enumerate(packets):
        packet.src, packet.dst = src, dst
        packet.entropy = 0xC000 + number
        packet.qpn = 0xABC000 + number
        packet.src_qpn = 0xDEF000 + number
        packet.psn = 0xFFFFF0 + number & 0xFFFFFF
        packet.tag = 0xFACE0000 + number
        packet.seq = 0xFFFFFFF0 + number & 0xFFFFFFFF if packet.kind in (DATA, CONTROL) else 0
        packet.ack_request = number % 2 == 0
        packet.solicited = number % 3 == 0
    return packets


def every_frame(linktype: int) -> list[tuple[Packet, bool, bytes]]:
    return [
        (packet, ud, Codec(ud=ud).frame(packet, linktype=linktype))
        for src, dst in ADDRESSES
        for ud in (False, True)
        for packet in every_kind(src, dst)
    ]


def write(path: Path, frames: list[tuple[Packet, bool, bytes]], linktype: int) -> None:
    with PcapFile(path, linktype) as file:
        for number, (_, _, frame) in enumerate(frames):
            file.write(number * 1_000_000, frame)


FIELDS = (
    "infiniband.bth.opcode", "infiniband.bth.se", "infiniband.bth.m", "infiniband.bth.padcnt", "infiniband.bth.tver",
    "infiniband.bth.p_key", "infiniband.bth.destqp", "infiniband.bth.a", "infiniband.bth.psn", "infiniband.reth.va",
    "infiniband.reth.r_key", "infiniband.reth.dmalen", "infiniband.immdt", "infiniband.deth.q_key",
    "infiniband.deth.srcqp", "udp.srcport", "udp.dstport", "ip.dsfield.ecn", "ipv6.tclass.ecn",
    "infiniband.invariant.crc",
)  # fmt: skip


def should_show(packet: Packet, ud: bool, frame: bytes) -> dict[str, int]:
    """Numbers that tshark must show; a field that is not named must be empty."""
    ud = ud and packet.kind != CNP
    parsed = headers.parse_headers(frame)
    values = {
        "infiniband.bth.opcode": 0x64 if ud else (0x2B, 0x25, 0x24, 0x81)[packet.kind],
        "infiniband.bth.se": packet.solicited,
        "infiniband.bth.m": 0,
        "infiniband.bth.padcnt": parsed.pad,
        "infiniband.bth.tver": 0,
        "infiniband.bth.p_key": 0xFFFF,
        "infiniband.bth.destqp": packet.qpn,
        "infiniband.bth.a": packet.ack_request,
        "infiniband.bth.psn": packet.psn,
        "udp.srcport": packet.entropy,
        "udp.dstport": 4791,
    }
    if packet.kind != CNP:  # tshark shows none there
        values["infiniband.invariant.crc"] = int.from_bytes(frame[-4:], "big")
    values["ip.dsfield.ecn" if len(packet.src) == 4 else "ipv6.tclass.ecn"] = packet.ecn
    if ud:
        values |= {"infiniband.deth.q_key": QKEY, "infiniband.deth.srcqp": packet.src_qpn}
    elif packet.kind == DATA:
        values |= {
            "infiniband.reth.va": packet.address,
            "infiniband.reth.r_key": packet.rkey,
            "infiniband.reth.dmalen": packet.length,
        }
    if not ud and packet.kind in (DATA, CONTROL):
        values["infiniband.immdt"] = packet.seq
    return values


def as_number(field: str, text: str) -> int:
    if field == "infiniband.immdt":
        return int(text.replace(":", "").removeprefix("0x"), 16)
    return {"True": 1, "False": 0}[text] if text in ("True", "False") else int(text, 0)


def test_every_kind_of_packet_shows_its_header_fields(tmp_path: Path) -> None:
    frames = every_frame(headers.ETHERNET)
    write(tmp_path / "every.pcap", frames, headers.ETHERNET)
    options = [option for field in FIELDS for option in ("-e", field)]
    # tshark lists an immediate twice: once as a header, once as its content.
    lines = tshark(tmp_path / "every.pcap", "-T", "fields", "-E", "occurrence=f", *options)
    assert len(lines) == len(frames)
    for line, (packet, ud, frame) in zip(lines, frames, strict=True):
        texts = dict(zip(FIELDS, line.split("\t"), strict=True))
        shown = {field: as_number(field, text) for field, text in texts.items() if text}
        assert shown == should_show(packet, ud, frame), (packet, ud)


@pytest.mark.parametrize("linktype", [headers.ETHERNET, headers.RAW_IP])
def test_no_frame_is_malformed_or_has_a_wrong_checksum(tmp_path: Path, linktype: int) -> None:
    frames = every_frame(linktype)
    path = tmp_path / "every.pcap"
    write(path, frames, linktype)
    assert len(tshark(path, "-Y", "infiniband.bth")) == len(frames)
    assert tshark(path, "-Y", "_ws.malformed || _ws.short || _ws.expert.severity >= warning") == []
    checks = ("-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE")
    assert tshark(path, *checks, "-Y", "ip.checksum.status == Bad || udp.checksum.status == Bad") == []


def test_a_cut_frame_is_noticed(tmp_path: Path) -> None:
    """The check above can fail."""
    frame = Codec().frame(every_kind(*ADDRESSES[0])[0])
    with PcapFile(tmp_path / "cut.pcap") as file:
        file.write(0, frame[:50])
    assert len(tshark(tmp_path / "cut.pcap", "-Y", "_ws.malformed || _ws.short || _ws.expert.severity >= warning")) == 1


def test_lengths_and_times_of_the_capture(tmp_path: Path) -> None:
    frames = every_frame(headers.ETHERNET)
    write(tmp_path / "every.pcap", frames, headers.ETHERNET)
    lines = tshark(tmp_path / "every.pcap", "-T", "fields", "-e", "frame.len", "-e", "frame.time_epoch")
    lengths = [int(line.split("\t")[0]) for line in lines]
    assert lengths == [len(frame) for _, _, frame in frames]
    assert lines[3].split("\t")[1] == "0.000003000"

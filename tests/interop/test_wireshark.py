"""The Lua dissector in tshark: every field of every payload, on damaged bytes the codec's verdict, captures of runs.

DAMAGED packets are made from a fixed seed; POLYROCE_FUZZ_PACKETS in the environment is how many.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from transport import headers, payloads
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
from transport.errors import WireError
from transport.packet import CNP, CONTROL, DATA, DATAGRAM, Packet
from transport.pcapfile import PcapFile
from transport.wire import OFF, QKEY, Codec

TSHARK = shutil.which("tshark")
if TSHARK is None and not os.environ.get("CI"):
    pytest.skip("tshark is not installed", allow_module_level=True)

DAMAGED = int(os.environ.get("POLYROCE_FUZZ_PACKETS", "3000"))
ALICE, BOB = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
DATA_FOLDER = Path(__file__).resolve().parent.parent / "data" / "pcap"


def tshark(path: Path, *arguments: str) -> list[str]:
    """Output lines with the dissector loaded; no Lua error, whatever the capture holds."""
    assert TSHARK is not None, "tshark is not installed, and CI must have it"
    script = CliRunner().invoke(app, ["wireshark"]).stdout.strip()
    done = subprocess.run(
        [TSHARK, "-r", str(path), "-X", f"lua_script:{script}", *arguments],
        capture_output=True, text=True, check=False, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Lua" not in done.stderr, done.stderr
    assert "Lua Error" not in done.stdout
    return done.stdout.splitlines()


def write(path: Path, frames: Sequence[bytes]) -> Path:
    with PcapFile(path) as file:
        for number, frame in enumerate(frames):
            file.write(number * 1_000_000, frame)
    return path


# Random payloads


def bits_of(rng: random.Random, bits: int) -> bytes:
    return rng.getrandbits(bits).to_bytes((bits + 7) // 8, "little") if bits else b""


def an_ack(rng: random.Random) -> Ack:
    u32 = rng.getrandbits
    ack = Ack()
    ack.bits = rng.choice((0, 1, 7, 8, 9, 64, rng.randrange(1, 2000)))
    ack.received, ack.marked = bits_of(rng, ack.bits), bits_of(rng, ack.bits)
    ack.control_received = rng.randbytes(rng.randrange(17))
    ack.edge, ack.base, ack.control_edge, ack.trigger_seq = u32(32), u32(32), u32(32), u32(32)
    ack.trigger_space, ack.trigger_psn, ack.trigger_entropy = u32(1), u32(24), u32(16)
    ack.hold = u32(32) * 1000
    ack.last_duplicate, ack.duplicates, ack.marked_packets, ack.marked_bytes = u32(32), u32(32), u32(32), u32(63)
    return ack


def a_msg(rng: random.Random) -> Msg:
    inline = rng.randbytes(rng.randrange(257)) if rng.random() < 0.5 else None
    length = rng.getrandbits(63) if inline is None else len(inline)
    return Msg(
        rng.getrandbits(32), rng.randrange(4), rng.getrandbits(32), rng.getrandbits(32), length, rng.getrandbits(32),
        inline,
    )  # fmt: skip


def an_advert(rng: random.Random) -> RecvAdvert:
    u = rng.getrandbits
    return RecvAdvert(u(32), tuple(Receive(u(32), u(64), u(63)) for _ in range(rng.choice((0, 1, 2, 203)))))


def status_of(rng: random.Random) -> Status:
    return rng.choice(list(Status))


MAKERS: tuple[Callable[[random.Random], Control], ...] = (
    a_msg,
    an_advert,
    lambda r: ReadReq(
        r.getrandbits(32), r.getrandbits(32), r.getrandbits(32), r.getrandbits(64), r.getrandbits(63),
        r.getrandbits(32), r.getrandbits(64),
    ),
    lambda r: Atomic(
        r.getrandbits(32), r.randrange(2), r.getrandbits(32), r.getrandbits(32), r.getrandbits(64), r.getrandbits(64),
        r.getrandbits(64),
    ),
    lambda r: AtomicReply(r.getrandbits(32), r.getrandbits(64)),
    lambda r: Terminate(status_of(r), r.randrange(3), r.getrandbits(32)),
    lambda r: Close(r.getrandbits(32), r.getrandbits(32)),
    lambda r: Retire(r.getrandbits(16), r.getrandbits(24)),
    lambda r: Retired(r.getrandbits(16), r.getrandbits(24), r.getrandbits(24)),
    an_ack,
    lambda r: Nack(r.getrandbits(32), r.getrandbits(24), r.getrandbits(16), r.getrandbits(1)),
    lambda r: Reject(r.getrandbits(32), r.getrandbits(32), r.getrandbits(64), status_of(r)),
    lambda r: Probe(r.getrandbits(64), r.getrandbits(16)),
    lambda r: ProbeReply(r.getrandbits(64), r.getrandbits(16), r.getrandbits(32) * 1000, r.random() < 0.5),
    lambda r: Demand(r.getrandbits(63), r.getrandbits(63), r.getrandbits(63)),
    lambda r: Credit(r.getrandbits(63)),
)  # fmt: skip


def a_packet(rng: random.Random, control: Control | None) -> Packet:
    """With `control`, or with data."""
    packet = Packet()
    packet.src, packet.dst, packet.entropy, packet.qpn, packet.src_qpn = ALICE, BOB, 0xC001, 0x123456, 0x654321
    packet.seq, packet.tag = rng.getrandbits(32), rng.getrandbits(32)
    if control is None:
        packet.payload = rng.randbytes(rng.choice((0, 1, 2, 3, 4, 100, 4000)))
        packet.length = packet.segment = len(packet.payload)
        packet.rkey, packet.address = rng.getrandbits(32), rng.getrandbits(64)
    else:
        packet.control = control
        reliable = payloads.is_reliable(payloads.encode(control)[0])
        packet.kind = CONTROL if reliable else DATAGRAM
    return packet


def packets(rng: random.Random, rounds: int) -> Iterator[tuple[Packet, bool]]:
    """(packet, whether it goes over UD): data and every control payload, `rounds` times each way."""
    for _ in range(rounds):
        for ud in (False, True):
            yield a_packet(rng, None), ud
            for maker in MAKERS:
                yield a_packet(rng, maker(rng)), ud


# What must be shown


def shown_by(packet: Packet, ud: bool) -> dict[str, list[int | bytes]]:
    """Field -> its values, for all fields that the packet must have and no others."""
    fields: dict[str, list[int | bytes]] = {}
    if packet.kind == DATA:
        fields["dsn"] = [packet.seq]
        if not ud:
            return fields
        fields |= {"tag": [packet.tag], "type": [1], "data.rkey": [packet.rkey], "data.address": [packet.address]}
        if packet.length:
            fields["data.payload"] = [bytes(packet.payload or b"")]
        return fields
    control = packet.control
    assert control is not None
    code = payloads.encode(control)[0]
    fields["tag"] = [packet.tag]
    fields["type"] = [2, code] if ud and packet.kind == CONTROL else [code]
    if packet.kind == CONTROL:
        fields["csn"] = [packet.seq]
    prefix = SNAKE[type(control)]
    values = {name: getattr(control, name) for name in dir(control) if not name.startswith("_")}
    values = {name: value for name, value in values.items() if not callable(value)}
    if isinstance(control, RecvAdvert):
        values |= {"count": len(control.receives)}
        for name in ("rkey", "address", "length"):
            if control.receives:
                fields[f"{prefix}.{name}"] = [getattr(receive, name) for receive in control.receives]
        del values["receives"]
    if isinstance(control, Msg):
        values["is_inline"] = control.inline is not None
    if isinstance(control, Ack):
        values["control_bytes"] = len(control.control_received)
    if "hold" in values:
        values["hold"] //= 1000
    for name, value in values.items():
        if value is not None and value != b"":
            fields[f"{prefix}.{name}"] = [value if isinstance(value, bytes) else int(value)]
    return fields


SNAKE = {
    Msg: "msg", RecvAdvert: "recv_advert", ReadReq: "read_req", Atomic: "atomic", AtomicReply: "atomic_reply",
    Terminate: "terminate", Close: "close", Retire: "retire", Retired: "retired", Ack: "ack", Nack: "nack",
    Reject: "reject", Probe: "probe", ProbeReply: "probe_reply", Demand: "demand", Credit: "credit",
}  # fmt: skip
#: Made from what stands in other fields.
SPELLED_OUT = {"ack.arrived", "ack.congested", "ack.control_arrived", "recv_advert.receive"}


def shown_in(fields: dict[str, list[str]]) -> dict[str, list[int | bytes]]:
    """What tshark says, as numbers and bytes."""
    found: dict[str, list[int | bytes]] = {}
    for name, texts in fields.items():
        if name in SPELLED_OUT:
            continue
        if name in BYTES:
            found[name] = [bytes.fromhex(text.replace(":", "")) for text in texts]
        else:
            found[name] = [int(text, 0) for text in texts]
    return found


BYTES = {"data.payload", "msg.inline", "ack.received", "ack.marked", "ack.control_received"}


def dissected(path: Path) -> list[dict[str, list[str]]]:
    """The fields of the dissector of each packet, without their common prefix."""
    layers = json.loads("\n".join(tshark(path, "-T", "json", "--no-duplicate-keys", "-J", "polyroce")))
    return [dict(flat(packet["_source"]["layers"].get("polyroce", {}))) for packet in layers]


def flat(tree: Any) -> Iterator[tuple[str, list[str]]]:
    """Every field of tshark's JSON with all of its values."""
    gathered: dict[str, list[str]] = {}

    def walk(node: Any) -> None:
        for key, value in node.items():
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, dict):
                    walk(item)
                elif key.startswith("polyroce."):
                    gathered.setdefault(key.removeprefix("polyroce."), []).append(item)

    if isinstance(tree, dict):
        walk(tree)
    yield from gathered.items()


def test_every_field_of_every_payload_is_shown_as_it_was_encoded(tmp_path: Path) -> None:
    made = list(packets(random.Random("fields"), 8))
    path = write(tmp_path / "all.pcap", [Codec(ud=ud).frame(packet) for packet, ud in made])
    found = dissected(path)
    assert len(found) == len(made)
    for (packet, ud), fields in zip(made, found, strict=True):
        assert shown_in(fields) == shown_by(packet, ud), packet
    assert tshark(path, "-Y", "polyroce.malformed || _ws.malformed || _ws.expert.severity >= warning") == []
    assert len(tshark(path, "-Y", "polyroce")) == len(made)


def test_bitmaps_are_spelled_out_as_sequence_numbers(tmp_path: Path) -> None:
    ack = Ack()
    ack.base, ack.bits, ack.control_edge = 0xFFFFFFFE, 12, 7
    ack.received, ack.marked, ack.control_received = bytes([0b10110111, 0b1000]), bytes([0b10, 0]), bytes([0b101])
    path = write(tmp_path / "ack.pcap", [Codec().frame(a_packet(random.Random(1), ack))])
    (fields,) = dissected(path)
    assert fields["ack.arrived"] == ["4294967294 to 0, 2 to 3, 5, 9"]
    assert fields["ack.congested"] == ["4294967295"]
    assert fields["ack.control_arrived"] == ["7, 9"]


def test_statuses_and_operations_have_names_in_the_packet_list(tmp_path: Path) -> None:
    statuses = list(Status)
    frames = [Codec().frame(a_packet(random.Random(1), Terminate(status, 1, 5))) for status in statuses]
    lines = tshark(write(tmp_path / "statuses.pcap", frames), "-T", "fields", "-e", "_ws.col.Info")
    for status, line in zip(statuses, lines, strict=True):
        assert f"TERMINATE status={status.name} kind=read or atomic number=5" in line


def test_filters_find_what_they_name(tmp_path: Path) -> None:
    ack = Ack()
    ack.edge = 77
    rng = random.Random(1)
    frames = [Codec().frame(a_packet(rng, control)) for control in (ack, Probe(5, 0xC007), Demand(1))]
    path = write(tmp_path / "filters.pcap", frames)
    for expression, number in (
        ("polyroce.ack.edge == 77", 1), ("polyroce.probe.entropy == 0xc007", 2), ("polyroce.type == 0x25", 3),
    ):  # fmt: skip
        assert tshark(path, "-Y", expression, "-T", "fields", "-e", "frame.number") == [str(number)]


# Damaged bytes

_EXTENDED = {0x2B: 20, 0x25: 4, 0x24: 0, 0x64: 8}  # opcode -> bytes between BTH and payload
_BTH = 12


def damaged(rng: random.Random, packet: Packet, ud: bool) -> bytes:
    """A frame like that of `packet` whose payload, padding or RETH length is damaged, or nothing at all."""
    body = Codec(OFF, ud=ud).encode(packet, 0)
    whole = b"".join(bytes(part) for part in body if part is not None)
    opcode = whole[0]
    start = _BTH + _EXTENDED[opcode]
    pad = whole[1] >> 4 & 3
    header, payload = bytearray(whole[:start]), bytearray(whole[start : len(whole) - 4 - pad])
    kind = rng.randrange(8)
    if kind == 0 and payload:
        for _ in range(rng.randrange(1, 4)):
            payload[rng.randrange(len(payload))] = rng.choice((0, 1, 2, 3, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    elif kind == 1 and payload:
        payload[rng.randrange(len(payload))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        del payload[rng.randrange(len(payload) + 1) :]
    elif kind == 3:
        payload += rng.randbytes(rng.randrange(1, 60))
    elif kind == 4:
        payload = bytearray(rng.randbytes(rng.randrange(0, 120)))
    elif kind == 5 and len(payload) > 4:  # another type code: the layout of one payload on the bytes of another
        payload[4] = rng.choice((1, 2, *range(0x0F, 0x1B), *range(0x1F, 0x29)))
    elif kind == 6 and len(payload) > 5:
        payload[4 + rng.randrange(min(8, len(payload) - 4))] = rng.randrange(256)
    pad = -len(payload) % 4
    told = pad if rng.random() < 0.95 else rng.randrange(4)
    header[1] = header[1] & 0xCF | told << 4
    if opcode == 0x2B and rng.random() < 0.8:
        header[24:28] = len(payload).to_bytes(4, "big")
    body_bytes = bytes(header) + bytes(payload) + bytes(pad) + bytes(4)
    return headers.build_headers(ALICE, BOB, packet.entropy, 2, 64, 0, body_bytes, headers.ETHERNET) + body_bytes


def refused(frame: bytes) -> bool:
    try:
        Codec(OFF).parse_frame(frame)
    except WireError:
        return True
    return False


def test_what_the_codec_refuses_is_marked_malformed_and_nothing_else(tmp_path: Path) -> None:
    rng = random.Random("damaged")
    frames: list[bytes] = []
    while len(frames) < DAMAGED:
        frames += [damaged(rng, packet, ud) for packet, ud in packets(rng, 1)]
    path = write(tmp_path / "damaged.pcap", frames)
    lines = tshark(path, "-T", "fields", "-e", "frame.number", "-Y", "polyroce.malformed")
    marked = {int(line) for line in lines}
    wrong = {number for number, frame in enumerate(frames, 1) if refused(frame)}
    assert len(frames) / 10 < len(wrong) < len(frames) * 9 / 10
    assert sorted(marked ^ wrong) == []
    tshark(path, "-V")  # also with everything spelled out: no Lua error


def test_bytes_that_the_capture_cut_off_raise_no_lua_error(tmp_path: Path) -> None:
    rng = random.Random("cut")
    frames = [Codec(ud=ud).frame(packet) for packet, ud in packets(rng, 4)]
    path = write(tmp_path / "cut.pcap", [frame[: rng.randrange(43, len(frame) + 1)] for frame in frames])
    assert tshark(path, "-V")


def test_traffic_of_others_is_left_alone(tmp_path: Path) -> None:
    foreign = bytearray(Codec(ud=True).frame(a_packet(random.Random(1), Demand(1))))
    at = foreign.index(QKEY.to_bytes(4, "big"))
    foreign[at : at + 4] = (0x11111111).to_bytes(4, "big")
    notice = a_packet(random.Random(1), Demand(1))
    notice.kind, notice.control = CNP, None
    path = write(tmp_path / "foreign.pcap", [bytes(foreign), Codec().frame(notice)])
    assert tshark(path, "-Y", "polyroce") == []
    rxe = DATA_FOLDER / "rxe_kernel_6.1.pcap"
    taken = tshark(rxe, "-Y", "polyroce", "-T", "fields", "-e", "infiniband.bth.opcode")
    assert {int(opcode, 0) for opcode in taken} <= {0x24, 0x25, 0x2B}
    assert len(taken) < len(tshark(rxe, "-Y", "infiniband.bth"))


# Captures of whole runs

BAD = "polyroce.malformed || _ws.malformed || _ws.short || _ws.expert.severity >= warning"


def numbers(path: Path, *fields: str) -> list[tuple[str, ...]]:
    """The fields of each packet with data."""
    options = [option for field in fields for option in ("-e", field)]
    lines = tshark(path, "-Y", "polyroce.dsn", "-T", "fields", "-E", "occurrence=f", *options)
    return [tuple(line.split("\t")) for line in lines]


@pytest.mark.xdist_group("ports")
@pytest.mark.parametrize("network", ["udp", "loopback"])
def test_a_capture_of_a_run_has_every_packet_once_and_none_malformed(tmp_path: Path, network: str) -> None:
    capture, out = tmp_path / "run.pcap", tmp_path / "run.json"
    settings = ("--set", "messages=5", "--set", "size=20KiB", "--ranks", "3")
    result = CliRunner().invoke(
        app, ["run", "incast", "--on", network, *settings, "--pcap", str(capture), "--json", str(out)]
    )
    assert result.exit_code == 0, result.output
    assert tshark(capture, "-Y", BAD) == []
    sent = json.loads(out.read_text())["phases"][0]
    data = numbers(capture, "ip.src", "polyroce.dsn", "infiniband.bth.psn")
    distinct = {(source, number) for source, number, _ in data}
    assert len(set(data)) == len(data)
    if network == "loopback":  # over UDP, the phase that measures the rate is in the capture too
        assert len(data) == sent["packets"]
        assert len(distinct) == len(data) - sent["retransmits"]
    assert len(distinct) >= 2 * 5 * 5
    assert list(tmp_path.iterdir()) in ([capture, out], [out, capture])
    times = [float(line) for line in tshark(capture, "-T", "fields", "-e", "frame.time_epoch")]
    assert times == sorted(times)


@pytest.mark.xdist_group("ports")
@pytest.mark.parametrize("op", ["write", "read"])
def test_a_capture_of_perf_has_what_this_side_sent_and_received(tmp_path: Path, op: str) -> None:
    capture, out = tmp_path / "perf.pcap", tmp_path / "perf.json"
    arguments = ["perf", "--local", "--duration", "0.05", "--size", "20000", "--op", op]
    result = CliRunner().invoke(app, [*arguments, "--pcap", str(capture), "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert tshark(capture, "-Y", BAD) == []
    (row,) = json.loads(out.read_text())["rows"]
    data = numbers(capture, "ip.src", "polyroce.dsn")
    assert {source for source, _ in data} == {"127.0.0.1" if op == "write" else "127.0.0.2"}
    assert len(set(data)) == row["messages"] * 5
    sources = set(tshark(capture, "-T", "fields", "-e", "ip.src"))
    assert sources == {"127.0.0.1", "127.0.0.2"}


@pytest.mark.xdist_group("ports")
def test_a_capture_of_perf_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["perf", "--local", "--pcap", str(tmp_path / "nowhere" / "x.pcap")])
    assert result.exit_code == 2
    assert "x.pcap: cannot be written: No such file" in result.stderr

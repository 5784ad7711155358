"""docs/wire.md says of every control payload where each field is. These tables are read here and held against bytes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from transport import payloads, wire
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
from transport.packet import CONTROL, DATA, DATAGRAM, Packet
from transport.wire import OFF, Codec

TEXT = (Path(__file__).parent.parent.parent / "docs" / "wire.md").read_text(encoding="utf-8")
HEADING = re.compile(r"^### (\w+) 0x([0-9A-F]{2})$(.*?)(?=^#)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| (\d+) \| (\d*) ?\| (.+) \|$", re.MULTILINE)


class Row(NamedTuple):
    offset: int
    size: int | None
    field: str


TABLES = {
    name: (int(code, 16), [Row(int(at), int(size) if size else None, field) for at, size, field in ROW.findall(body)])
    for name, code, body in HEADING.findall(TEXT)
}


def full_ack() -> Ack:
    ack = Ack()
    for number, name in enumerate(
        (
            "edge",
            "base",
            "control_edge",
            "trigger_seq",
            "last_duplicate",
            "duplicates",
            "marked_packets",
            "marked_bytes",
        )
    ):
        setattr(ack, name, 0x1000 + number)
    ack.trigger_space, ack.trigger_psn, ack.trigger_entropy, ack.hold = 1, 0x123456, 0xC123, 5000
    ack.bits, ack.control_received, ack.received, ack.marked = 9, b"\x11\x12", b"\x21\x01", b"\x31\x00"
    return ack


RECORDS: dict[str, Control] = {
    "MSG": Msg(0x101, 2, 0x102, 0x103, 3, 0x105, b"abc"),
    "RECV_ADVERT": RecvAdvert(0x201, (Receive(1, 2, 3), Receive(4, 5, 6))),
    "READ_REQ": ReadReq(0x301, 0x302, 0x303, 0x304, 0x305, 0x306, 0x307),
    "ATOMIC": Atomic(0x401, 1, 0x402, 0x403, 0x404, 0x405, 0x406),
    "ATOMIC_REPLY": AtomicReply(0x501, 0x502),
    "TERMINATE": Terminate(Status.REM_ACCESS_ERR, 2, 0x601),
    "CLOSE": Close(0x701, 0x702),
    "RETIRE": Retire(0x801, 0x802),
    "RETIRED": Retired(0x901, 0x902, 0x903),
    "ACK": full_ack(),
    "NACK": Nack(0xA01, 0xA02, 0xA03, 1),
    "REJECT": Reject(0xB01, 0xB02, 0xB03, Status.REM_OP_ERR),
    "PROBE": Probe(0xC01, 0xC02),
    "PROBE_REPLY": ProbeReply(0xD01, 0xD02, 0xD03000, True),
    "DEMAND": Demand(0xE01, 0xE02, 0xE03),
    "CREDIT": Credit(0xF01),
}


def payload(packet: Packet, ud: bool = False) -> bytes:
    packet.src = packet.dst = bytes(4)
    header, data, _ = Codec(icrc=OFF, ud=ud).encode(packet, 0)
    start = 12 + (8 if ud else 4 if packet.kind == CONTROL else 0)
    return header[start:] + bytes(data or b"")


def test_the_document_has_a_table_for_every_type_code() -> None:
    codes = {name: value for name, value in vars(payloads).items() if name in TABLES}
    codes |= {"UD_DATA": wire.UD_DATA, "UD_CONTROL": wire.UD_CONTROL}
    assert {name: code for name, (code, _) in TABLES.items()} == codes
    assert set(TABLES) == {*RECORDS, "UD_DATA", "UD_CONTROL"}


@pytest.mark.parametrize("name", TABLES)
def test_the_rows_of_a_table_follow_each_other_without_a_gap(name: str) -> None:
    _, rows = TABLES[name]
    at = 0
    for row in rows:
        assert row.offset == at
        assert row.size is not None or row is rows[-1]
        at += row.size or 0


@pytest.mark.parametrize("name", RECORDS)
def test_every_field_is_where_the_document_says(name: str) -> None:
    code, rows = TABLES[name]
    record: Any = RECORDS[name]
    packet = Packet()
    packet.kind = CONTROL if code < 0x20 else DATAGRAM
    packet.control = record
    packet.tag = 0xFACEB00C
    data = payload(packet)
    checked = 0
    for offset, size, text in rows:
        if size is None:
            continue
        value = int.from_bytes(data[offset : offset + size], "big")
        field = text.split(":")[0]
        if field == "tag":
            assert value == 0xFACEB00C
        elif field == "type":
            assert value == code
        elif field == "reserved":
            assert value == 0
        elif field == "hold":
            assert value == record.hold // 1000
            checked += 1
        elif hasattr(record, field):
            assert value == getattr(record, field)
            checked += 1
    assert checked >= 1
    fixed = rows[-1].offset + (rows[-1].size or 0)
    rest = {"MSG": 3, "RECV_ADVERT": 40, "ACK": 6}.get(name, 0)
    assert len(data) == fixed + rest


def test_what_follows_the_fixed_part() -> None:
    assert payloads.encode(RECORDS["MSG"])[-3:] == b"abc"
    assert payloads.encode(RECORDS["MSG"])[2] == 1
    assert payloads.encode(RECORDS["RECV_ADVERT"])[8:] == b"".join(
        number.to_bytes(size, "big") for number, size in ((1, 4), (2, 8), (3, 8), (4, 4), (5, 8), (6, 8))
    )
    assert payloads.encode(RECORDS["RECV_ADVERT"])[1] == 2
    assert payloads.encode(RECORDS["ACK"])[-6:] == b"\x11\x12\x21\x01\x31\x00"
    assert payloads.encode(RECORDS["ACK"])[26] == 2


def test_ud_payloads() -> None:
    packet = Packet()
    packet.kind = DATA
    packet.tag, packet.seq, packet.rkey, packet.address = 0xFACEB00C, 0x1001, 0x1002, 0x1003
    packet.payload, packet.length = b"data", 4
    data = payload(packet, ud=True)
    fields = {"tag": packet.tag, "type": 1, "reserved": 0, "DSN": 0x1001, "rkey": 0x1002, "address": 0x1003}
    for offset, size, field in TABLES["UD_DATA"][1]:
        if size is not None:
            assert int.from_bytes(data[offset : offset + size], "big") == fields[field]
    assert data[24:] == b"data"
    packet = Packet()
    packet.kind = CONTROL
    packet.tag, packet.seq, packet.control = 0xFACEB00C, 0x1001, Close(1, 2)
    data = payload(packet, ud=True)
    fields = {"tag": packet.tag, "type": 2, "reserved": 0, "CSN": 0x1001}
    for offset, size, field in TABLES["UD_CONTROL"][1]:
        if size is not None:
            assert int.from_bytes(data[offset : offset + size], "big") == fields[field]
    assert data[12:] == payloads.encode(Close(1, 2))


def test_the_table_of_what_fits() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", TEXT, re.MULTILINE)
    assert [int(row[0]) for row in rows] == [256, 512, 1024, 2048, 4096]
    for row in rows:
        mtu, *limits = map(int, row)
        functions = (wire.max_ack_bits, wire.max_advert, wire.max_inline, wire.max_ud_segment)
        assert limits == [limit(mtu) for limit in functions]

"""Capture files, ours and those of others."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport import pcapfile
from transport.clock import SECOND
from transport.errors import WireError
from transport.headers import ETHERNET, RAW_IP

times = st.integers(0, (1 << 32) * SECOND // 1000 - 1).map(lambda ns: ns * 1000)


@given(frames=st.lists(st.tuples(times, st.binary(max_size=50))), linktype=st.sampled_from([ETHERNET, RAW_IP]))
def test_what_was_written_is_read_to_the_nanosecond(
    tmp_path_factory: pytest.TempPathFactory, frames: list[tuple[int, bytes]], linktype: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "frames.pcap"
    with pcapfile.PcapFile(path, linktype) as file:
        for time, frame in frames:
            file.write(time, frame)
    assert pcapfile.read(path) == (linktype, frames)


def test_picoseconds_below_a_nanosecond_are_cut(tmp_path: Path) -> None:
    file = pcapfile.PcapFile(tmp_path / "x.pcap")
    file.write(3 * SECOND + 1999, b"a")
    file.close()
    assert pcapfile.read(tmp_path / "x.pcap") == (ETHERNET, [(3 * SECOND + 1000, b"a")])


@pytest.mark.parametrize("order", ["<", ">"])
def test_microseconds_and_the_other_byte_order_are_read(tmp_path: Path, order: str) -> None:
    data = struct.pack(order + "IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101)
    data += struct.pack(order + "IIII", 5, 7, 3, 3) + b"abc"
    (tmp_path / "x.pcap").write_bytes(data)
    assert pcapfile.read(tmp_path / "x.pcap") == (RAW_IP, [(5 * SECOND + 7_000_000, b"abc")])


@pytest.mark.parametrize("cut", [1, 16, 25, 39, 41])
def test_a_file_that_is_cut_short_or_none_is_a_wire_error(tmp_path: Path, cut: int) -> None:
    with pcapfile.PcapFile(tmp_path / "x.pcap") as file:
        file.write(0, b"abc")
    whole = (tmp_path / "x.pcap").read_bytes()
    (tmp_path / "x.pcap").write_bytes(whole[:cut])
    with pytest.raises(WireError, match=r"x\.pcap"):
        pcapfile.read(tmp_path / "x.pcap")


def test_another_file_is_a_wire_error(tmp_path: Path) -> None:
    (tmp_path / "x.pcap").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(WireError, match="no pcap file"):
        pcapfile.read(tmp_path / "x.pcap")

"""Capture files in the classic pcap format (https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap).

Written with nanosecond time stamps; read with either resolution and byte order. Not modelled: pcapng, snapped packets.
"""

from __future__ import annotations

import os
from struct import Struct
from types import TracebackType

from transport.clock import NS, SECOND, US, Time
from transport.errors import WireError
from transport.headers import ETHERNET

_NANOSECONDS = 0xA1B23C4D
_MICROSECONDS = 0xA1B2C3D4
_FILE_HEADER = Struct("<IHHiIII")
_RECORD = Struct("<IIII")
_SNAP_LENGTH = 0x40000


class PcapFile:
    """A capture file being written. linktype: transport.headers.ETHERNET or RAW_IP. OSError as from open."""

    def __init__(self, path: str | os.PathLike[str], linktype: int = ETHERNET) -> None:
        self._file = open(path, "wb")  # noqa: SIM115  closed by close()
        self._file.write(_FILE_HEADER.pack(_NANOSECONDS, 2, 4, 0, 0, _SNAP_LENGTH, linktype))

    def write(self, time_ps: Time, frame: bytes | bytearray | memoryview) -> None:
        """Append a frame seen at `time_ps` picoseconds, which is stored in whole nanoseconds."""
        seconds, rest = divmod(time_ps, SECOND)
        self._file.write(_RECORD.pack(seconds, rest // NS, len(frame), len(frame)))
        self._file.write(frame)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> PcapFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: str | os.PathLike[str]) -> tuple[int, list[tuple[Time, bytes]]]:
    """(link type, [(picoseconds, frame), ...]) of a capture file. WireError if it is none or is cut short."""
    with open(path, "rb") as file:
        data = file.read()
    for order in "<>":
        header = Struct(order + _FILE_HEADER.format[1:])
        if len(data) < header.size:
            break
        magic, _, _, _, _, _, linktype = header.unpack_from(data)
        if magic in (_NANOSECONDS, _MICROSECONDS):
            return linktype & 0xFFFF, _records(path, data, order, NS if magic == _NANOSECONDS else US)
    raise WireError(f"{os.fspath(path)} is no pcap file")


def _records(path: str | os.PathLike[str], data: bytes, order: str, unit: Time) -> list[tuple[Time, bytes]]:
    record = Struct(order + _RECORD.format[1:])
    frames = []
    at = _FILE_HEADER.size
    while at < len(data):
        if at + record.size > len(data):
            raise WireError(f"{os.fspath(path)} ends within a record header")
        seconds, fraction, captured, _ = record.unpack_from(data, at)
        at += record.size
        if at + captured > len(data):
            raise WireError(f"{os.fspath(path)} ends within a frame")
        frames.append((seconds * SECOND + fraction * unit, data[at : at + captured]))
        at += captured
    return frames

"""Work requests as they are posted: what the user gave, checked. ConfigError names the field, the value and what is
allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transport.completion import Opcode
from transport.errors import ConfigError
from transport.placement import MAX_LENGTH, as_view
from transport.work import Work

if TYPE_CHECKING:
    from typing_extensions import Buffer


def make(wr_id: int, opcode: Opcode, data: Buffer | int, imm: int | None) -> Work:
    """A request over `data`, or over that many phantom bytes."""
    length = data if isinstance(data, int) else 0
    view = None if isinstance(data, int) else as_view(data, "data")
    if view is not None:
        length = view.nbytes
    if not 0 <= length <= MAX_LENGTH:
        raise ConfigError(f"length = {length}: allowed are 0 to {MAX_LENGTH} bytes")
    work = Work(wr_id, opcode, length)
    work.data = view
    if imm is not None:
        if not 0 <= imm < 1 << 32:
            raise ConfigError(f"imm = {imm}: allowed are 0 to {(1 << 32) - 1}")
        work.imm = imm
        work.has_imm = True
    return work


def check_u64(name: str, value: int) -> int:
    """`value`, if it fits 64 bits."""
    if not 0 <= value < 1 << 64:
        raise ConfigError(f"{name} = {value}: allowed are 0 to {(1 << 64) - 1}")
    return value


def aim(work: Work, remote_address: int, rkey: int) -> None:
    """Give `work` its remote memory; ConfigError for what does not fit a packet or would wrap at 2**64 (rule P4)."""
    check_u64("remote_address", remote_address)
    if remote_address + work.length > 1 << 64:
        raise ConfigError(f"remote_address = {remote_address}: {work.length} bytes from there go beyond 2**64")
    if not 0 <= rkey < 1 << 32:
        raise ConfigError(f"rkey = {rkey}: allowed are 0 to {(1 << 32) - 1}")
    work.address = remote_address
    work.rkey = rkey

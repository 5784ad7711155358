"""Completion statuses and work completions, named as in the verbs (ibv_wc_status, ibv_wc_opcode)."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Status(IntEnum):
    """Values of ibv_wc_status."""

    SUCCESS = 0
    LOC_LEN_ERR = 1
    LOC_QP_OP_ERR = 2
    LOC_PROT_ERR = 4
    WR_FLUSH_ERR = 5
    BAD_RESP_ERR = 7
    REM_INV_REQ_ERR = 9
    REM_ACCESS_ERR = 10
    REM_OP_ERR = 11
    RETRY_EXC_ERR = 12
    REM_ABORT_ERR = 15
    FATAL_ERR = 18


class Opcode(IntEnum):
    """Values of ibv_wc_opcode."""

    SEND = 0
    RDMA_WRITE = 1
    RDMA_READ = 2
    COMP_SWAP = 3
    FETCH_ADD = 4
    RECV = 128
    RECV_RDMA_WITH_IMM = 129


class Completion(NamedTuple):
    """One work completion. byte_len: bytes received or read; imm: the immediate, None where there is none; value: what
    an atomic found; error: for a status other than SUCCESS, a text that names peer, path and cause."""

    wr_id: int
    status: Status
    opcode: Opcode
    qpn: int
    byte_len: int = 0
    imm: int | None = None
    value: int | None = None
    error: str = ""

"""Work requests as the engine keeps them."""

from __future__ import annotations

from typing import Any


class Work:
    """A posted send-side request, or a READ's response that the responder sends.

    data: view of the local bytes, None for phantom ones; first, count: its DSNs once sending began (count 0: it has
    none); sent, acked: segments; began: when the first left, picoseconds; number: the message number, or the id of a
    READ or atomic, -1 while it has none; waiting: replies or control acknowledgements still to come; refused: it is
    known to be too long for its receive.
    """

    def __init__(self, wr_id: int, opcode: int, length: int) -> None:
        self.wr_id = wr_id
        self.opcode = opcode
        self.length = length
        self.data: memoryview | None = None
        self.address = 0
        self.rkey = 0
        self.imm = 0
        self.has_imm = False
        self.response = False
        self.first = -1
        self.count = 0
        self.sent = 0
        self.acked = 0
        self.began = 0
        self.number = -1
        self.waiting = 0
        self.refused = False
        self.done = False
        self.region: Any = None
        self.reply: Any = None
        self.operand = 0
        self.compare = 0
        self.value: int | None = None


class PostedReceive:
    """A posted receive and, once its MSG came, the message that consumes it.

    number: its message number. op is -1 until the MSG came; end: the ledger's edge must reach it before delivery.
    """

    def __init__(self, wr_id: int, region: Any, number: int) -> None:
        self.wr_id = wr_id
        self.region = region
        self.number = number
        self.op = -1
        self.length = 0
        self.end = 0
        self.imm = 0

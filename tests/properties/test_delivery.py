"""C10: whatever the network does to packets, bytes are equal, each request completes once, in order, nothing is
buffered.

Any permutation (jitter), duplication, 0 to 5 % loss, corruption (which a Nic's ICRC turns into loss), any mix of
operations,
sizes and run lengths, in virtual time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import Pair, Wire
from transport import selectors
from transport.clock import SECOND, US
from transport.completion import Opcode, Status
from transport.placement import Access

ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC

USED_AGAIN = b"\xee"

OPERATIONS = ("write", "write_imm", "send", "send_imm", "read", "fetch_add", "cmp_swap")


@dataclass(frozen=True)
class Operation:
    kind: str
    size: int
    gap: int  # unaligned start inside the region


operations = st.lists(
    st.builds(
        Operation,
        kind=st.sampled_from(OPERATIONS),
        size=st.one_of(
            st.integers(0, 300), st.integers(0, 40_000), st.sampled_from([0, 1, 255, 256, 257, 4095, 4096, 4097])
        ),
        gap=st.integers(0, 9),
    ),
    min_size=1,
    max_size=25,
)
wires = st.builds(
    Wire,
    delay=st.integers(1, 20 * US),
    jitter=st.one_of(st.just(0), st.integers(1, 200 * US)),
    loss=st.floats(0, 0.05),
    duplicate=st.floats(0, 0.2),
    corrupt=st.floats(0, 0.03),
    rate=st.sampled_from([0, 10_000_000_000, 100_000_000_000]),
)


class Case:
    """Posts a list of operations from one side and knows what must come of it."""

    def __init__(self, pair: Pair, plan: list[Operation], seed: int) -> None:
        self.pair = pair
        self.ours, self.theirs = pair.connect()
        self.rng = random.Random(seed)
        domain = self.theirs.context.domain
        self.plan = plan
        self.slots = []  # (operation, the buffer that is written, what must be in it)
        self.delivered: dict[int, bytes] = {}  # what was in a buffer at the moment its completion came
        pair.on_completion = self._reuse
        for number, operation in enumerate(plan):
            remote = bytearray(operation.size + operation.gap + 16)
            source = self.rng.randbytes(operation.size)
            self.slots.append((operation, remote, source))
            region = domain.register(remote, ALL)
            self._post(number, operation, region, remote, source)

    def _post(self, number, operation, region, remote, source) -> None:
        now, kind = self.pair.now, operation.kind
        address = region.address + operation.gap
        if kind in ("write_imm", "send", "send_imm"):
            self.theirs.post_recv(now, 1000 + number, remote if kind != "write_imm" else bytearray(0))
        if kind == "write":
            self.ours.post_write(now, number, source, address, region.rkey)
        elif kind == "write_imm":
            self.ours.post_write(now, number, source, address, region.rkey, imm=number)
        elif kind == "send":
            self.ours.post_send(now, number, source)
        elif kind == "send_imm":
            self.ours.post_send(now, number, source, imm=number)
        elif kind == "read":
            remote[operation.gap : operation.gap + operation.size] = source
            buffer = bytearray(operation.size)
            self.slots[number] = (operation, buffer, source)
            self.ours.post_read(now, number, buffer, address, region.rkey)
        elif kind == "fetch_add":
            remote[0:8] = (number).to_bytes(8, "little")
            self.ours.post_fetch_add(now, number, region.address, region.rkey, 7)
        else:
            remote[0:8] = (number).to_bytes(8, "little")
            self.ours.post_cmp_swap(now, number, region.address, region.rkey, number, 99)

    def _reuse(self, host, completion) -> None:
        """The application takes its bytes and uses the buffer again at once, as it may."""
        number = completion.wr_id % 1000
        kind = self.plan[number].kind
        receives = kind in ("send", "send_imm", "write_imm")
        if kind in ("fetch_add", "cmp_swap") or (host is self.pair.bob) != receives:
            return
        buffer = self.slots[number][1]
        self.delivered[number] = bytes(buffer)
        buffer[:] = USED_AGAIN * len(buffer)

    def run(self) -> None:
        wanted = len(self.plan) + sum(item.kind in ("write_imm", "send", "send_imm") for item in self.plan)
        pair = self.pair
        pair.drive(lambda: len(pair.alice.completions) + len(pair.bob.completions) >= wanted, limit=60 * SECOND)
        pair.drive()  # late duplicates arrive too

    def check(self) -> None:
        sent = self.pair.alice.completions
        assert [item.wr_id for item in sent] == list(range(len(self.plan)))
        assert all(item.status == Status.SUCCESS for item in sent), sent
        received = self.pair.bob.completions
        consuming = [number for number, item in enumerate(self.plan) if item.kind in ("write_imm", "send", "send_imm")]
        assert [item.wr_id for item in received] == [1000 + number for number in consuming]
        for number, item in zip(consuming, received, strict=True):
            operation = self.plan[number]
            assert item.status == Status.SUCCESS
            assert item.byte_len == operation.size
            assert item.imm == (None if operation.kind == "send" else number)
            assert item.opcode == (Opcode.RECV_RDMA_WITH_IMM if operation.kind == "write_imm" else Opcode.RECV)
        for number, (operation, buffer, source) in enumerate(self.slots):
            remote = self.delivered.get(number, bytes(buffer))
            if number in self.delivered:  # no byte is written after delivery
                assert buffer == USED_AGAIN * len(buffer), number
            if operation.kind in ("write", "write_imm"):
                assert remote == bytes(operation.gap) + source + bytes(16), number
            elif operation.kind in ("send", "send_imm"):
                assert remote[: operation.size] == source
                assert not any(remote[operation.size :])
            elif operation.kind == "read":
                assert remote == source
            else:
                value = number + 7 if operation.kind == "fetch_add" else 99
                assert int.from_bytes(remote[0:8], "little") == value
                assert sent[number].value == number


@given(
    plan=operations,
    wire=wires,
    seed=st.integers(0, 2**32),
    max_run=st.sampled_from([1, 2, 7, 64]),
    paths=st.sampled_from([1, 2, 16]),
    mtu=st.sampled_from([256, 1024, 4096]),
    control=st.sampled_from(["fixed", "dctcp", "swift", "nscc"]),
    selector=st.sampled_from(selectors.names()),
)
def test_any_network_gives_equal_bytes_and_one_completion_each_in_order(
    plan, wire, seed, max_run, paths, mtu, control, selector
):
    pair = Pair(seed, wire, max_run=max_run, paths=paths, mtu=mtu, control=control, selector=selector)
    case = Case(pair, plan, seed)
    case.run()
    case.check()


@given(plan=operations, wire=wires, seed=st.integers(0, 2**32))
def test_a_seed_reproduces_every_packet(plan, wire, seed):
    traces = []
    for _ in range(2):
        pair = Pair(seed, wire)
        Case(pair, plan, seed).run()
        traces.append([(item.kind, item.seq, item.psn, item.entropy, item.length) for item in pair.sent])
    assert traces[0] == traces[1]


@given(plan=operations, wire=wires, seed=st.integers(0, 2**32), shift=st.integers(1, 10**15))
def test_the_hour_of_the_day_changes_nothing(plan, wire, seed, shift):
    traces = []
    for offset in (0, shift):
        pair = Pair(seed, wire)
        start = pair.now = pair.now + offset
        case = Case(pair, plan, seed)
        case.run()
        case.check()
        traces.append((pair.now - start, [(item.kind, item.seq, item.psn, item.entropy) for item in pair.sent]))
    assert traces[0] == traces[1]

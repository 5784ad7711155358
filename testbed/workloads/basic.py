"""The plain patterns: one pair, many to one, one to many, a permutation, and all to all."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from testbed.workloads.base import Message, Phase, Workload
from transport.clock import Time


class Flow(NamedTuple):
    """What each sender sends: `messages` of `size` bytes. depth and interval are those of a Phase."""

    messages: int
    size: int
    op: str
    depth: int
    interval: Time = 0

    def between(self, src: int, dst: int) -> list[Message]:
        return [Message(src, dst, self.size, self.op)] * self.messages

    def phase(self, name: str, messages: list[Message]) -> Phase:
        return Phase(name, tuple(messages), self.depth, self.interval)


def pair(flow: Flow, phases: int = 1) -> Workload:
    """Rank 0 sends to rank 1, the same in each of `phases` phases."""
    names = ["pair"] if phases == 1 else [f"pair {i}" for i in range(phases)]
    return Workload(2, tuple(flow.phase(name, flow.between(0, 1)) for name in names))


def incast(ranks: int, flow: Flow) -> Workload:
    """All other ranks send to rank 0 at once."""
    messages = [message for src in range(1, ranks) for message in flow.between(src, 0)]
    return Workload(ranks, (flow.phase(f"incast {ranks - 1} to 1", messages),))


def permutation(ranks: int, flow: Flow, seed: int) -> Workload:
    """Every rank sends to one other rank and receives from one: a random cycle through all of them."""
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(ranks)
    messages = [message for i in range(ranks) for message in flow.between(int(order[i]), int(order[(i + 1) % ranks]))]
    return Workload(ranks, (flow.phase("permutation", messages),))


def one_to_n(ranks: int, flow: Flow) -> Workload:
    """Rank 0 sends to all other ranks at once."""
    messages = [message for dst in range(1, ranks) for message in flow.between(0, dst)]
    return Workload(ranks, (flow.phase(f"1 to {ranks - 1}", messages),))


def alltoall(ranks: int, flow: Flow) -> Workload:
    """Every rank sends the same to every other rank. Rank r begins with rank r + 1."""
    messages = [
        message
        for src in range(ranks)
        for step in range(1, ranks)
        for message in flow.between(src, (src + step) % ranks)
    ]
    return Workload(ranks, (flow.phase("alltoall", messages),))

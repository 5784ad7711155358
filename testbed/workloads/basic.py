"""The small patterns: one pair, many to one, and a permutation."""

from __future__ import annotations

import numpy as np

from testbed.workloads.base import Message, Phase, Workload


def pair(messages: int, size: int, op: str, depth: int, phases: int = 1) -> Workload:
    """Rank 0 sends `messages` messages of `size` bytes to rank 1, in each of `phases` phases."""
    flow = tuple(Message(0, 1, size, op) for _ in range(messages))
    names = ["pair"] if phases == 1 else [f"pair {i}" for i in range(phases)]
    return Workload(2, tuple(Phase(name, flow, depth) for name in names))


def incast(ranks: int, messages: int, size: int, op: str, depth: int) -> Workload:
    """All other ranks send to rank 0 at once."""
    flow = tuple(Message(src, 0, size, op) for src in range(1, ranks) for _ in range(messages))
    return Workload(ranks, (Phase(f"incast {ranks - 1} to 1", flow, depth),))


def permutation(ranks: int, messages: int, size: int, op: str, depth: int, seed: int) -> Workload:
    """Every rank sends to one other rank and receives from one: a random cycle through all of them."""
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(ranks)
    flow = tuple(
        Message(int(order[i]), int(order[(i + 1) % ranks]), size, op) for i in range(ranks) for _ in range(messages)
    )
    return Workload(ranks, (Phase("permutation", flow, depth),))

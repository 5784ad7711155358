"""The M:N exchange between attention ranks and expert ranks that are different machines.

Attention rank i sends expert rank j T[i][j] = b_i p_j hidden bytes / tp: it has b_i tokens, a token needs rank j with
weight p_j (the weights sum to top_k), and tp ranks share a hidden vector. The same comes back. With ping-pong
micro-batches one batch goes out while another comes back, so both directions are one phase.

Weights, not choices, decide, so a row is an expectation; only its rounding to bytes is exact: what a rank sends sums to
b_i top_k hidden bytes / tp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.workloads.base import Bytes, Message, Phase, Workload
from testbed.workloads.routing import Floats
from transport.clock import SECOND, Time


def matrix(batch: Sequence[int], weights: Floats, vector: float) -> Bytes:
    """T in bytes. vector: bytes that one of the tp ranks sends of a hidden vector. Each row is rounded so that its sum
    is right."""
    edges = np.rint(np.outer(np.array(batch, dtype=np.float64) * vector, np.cumsum(weights))).astype(np.int64)
    return np.diff(edges, axis=1, prepend=0)


def m2n(batch: Sequence[int], weights: Sequence[Floats], vector: float, op: str) -> Workload:
    """A phase for each of `weights`. Ranks: the attention ranks, as many as `batch` has, then the expert ranks."""
    senders = len(batch)
    ranks = senders + len(weights[0])
    phases = []
    for number, of_phase in enumerate(weights):
        table = matrix(batch, of_phase, vector)
        pairs = [
            (i, senders + (i + step) % (ranks - senders)) for i in range(senders) for step in range(ranks - senders)
        ]  # fmt: skip
        sizes = [(i, j, int(table[i, j - senders])) for i, j in pairs if table[i, j - senders]]
        out = [Message(i, j, size, op) for i, j, size in sizes]
        back = [Message(j, i, size, op) for i, j, size in sizes]
        phases.append(Phase(f"layer {number} exchange", (*out, *back)))
    return Workload(ranks, tuple(phases))


def bound(senders: int, receivers: int, size: int, rate: int) -> Time:
    """The least time in which each of `senders` ranks sends `size` bytes to each of `receivers`, all with links of
    `rate` bits per second: max(M, N) S 8 / R. Also that of one direction only, as both have links of their own;
    one-to-N is senders = 1, incast receivers = 1. Headers and round trips come on top."""
    return max(senders, receivers) * size * 8 * SECOND // rate

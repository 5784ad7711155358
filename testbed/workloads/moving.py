"""An incast that moves: every so often another rank is the hot one, while all ranks also send elsewhere.

The phases of the pattern overlap if the network is slow, so they are one Phase whose messages are due at their times.
"""

from __future__ import annotations

import numpy as np

from testbed.workloads.base import Message, Phase, Workload
from transport.clock import Time

#: Messages of one pair that may be outstanding: what a rank owes from earlier times holds up nothing.
DEPTH = 64


def moving_incast(ranks: int, moves: int, every: Time, messages: int, size: int, share: float, seed: int) -> Workload:
    """`moves` times, `every` picoseconds apart, every rank but the hot one sends `messages` times `size` bytes: each to
    the hot rank with probability `share`, else to any rank but itself, all alike. What goes to one rank is one message.
    No rank is hot again before all were."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    order = rng.permutation(ranks)
    found = []
    for move in range(moves):
        hot = int(order[move % ranks])
        for src in range(ranks):
            if src == hot:
                continue
            others = np.delete(np.arange(ranks), src)
            to = np.where(rng.random(messages) < share, hot, rng.choice(others, messages))
            for dst, count in zip(*np.unique(to, return_counts=True), strict=True):
                found.append(Message(src, int(dst), size * int(count), "write", move * every))
    return Workload(ranks, (Phase("moving incast", tuple(found), DEPTH),))

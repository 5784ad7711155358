"""AllReduce as the messages that it consists of, step by step.

A step is a phase: all ranks finish it before the next begins, where a real ring waits for neighbours only. The messages
have the sizes of the collective's; nothing is added up, and what each receiver compares are the bytes of each message.
"""

from __future__ import annotations

from collections.abc import Sequence

from testbed.workloads.base import Message, Phase, Workload


def chunk(size: int, parts: int, number: int) -> int:
    """Bytes of one of `parts` chunks of a buffer: equal but for one byte, and together `size`."""
    return size * (number + 1) // parts - size * number // parts


def ring(ranks: int, size: int, op: str) -> Workload:
    """2(N - 1) steps: in each every rank sends one chunk of its buffer of `size` bytes to the next rank. First N - 1
    that reduce and scatter, then N - 1 that gather. Needs size >= ranks, so that no chunk is empty."""
    phases = []
    for name, ahead in (("reduce-scatter", 0), ("allgather", 1)):
        steps = [
            tuple(
                Message(rank, (rank + 1) % ranks, chunk(size, ranks, (rank + ahead - step) % ranks), op)
                for rank in range(ranks)
            )
            for step in range(ranks - 1)
        ]
        phases += _named(name, steps)
    return Workload(ranks, tuple(phases))


def tree(ranks: int, size: int, op: str) -> Workload:
    """2 log2(N) steps over a binomial tree, rounded up: the whole buffer goes up to rank 0 and down again."""
    depth = (ranks - 1).bit_length()
    pairs = [
        [(rank, rank - (1 << step)) for rank in range(1 << step, ranks, 2 << step)] for step in range(depth)
    ]  # fmt: skip
    up = [tuple(Message(child, parent, size, op) for child, parent in level) for level in pairs]
    down = [tuple(Message(parent, child, size, op) for child, parent in level) for level in reversed(pairs)]
    return Workload(ranks, (*_named("reduce", up), *_named("broadcast", down)))


def _named(name: str, steps: Sequence[tuple[Message, ...]]) -> list[Phase]:
    return [Phase(f"{name} {number} of {len(steps)}", step) for number, step in enumerate(steps, 1)]

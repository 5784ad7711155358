"""The AllToAll of mixture-of-experts layers under expert parallelism: dispatch, then combine.

Experts lie on ranks in contiguous blocks. In dispatch a token's hidden vector goes to the ranks that hold its experts;
in combine each of those sends a result back. What stays on its rank is not sent. There are two ways to send a token:

- once to a rank, however many of its experts are there, and the partial sum of their results back: one message for each
  pair of ranks, as kernels for throughput do;
- once for each of its experts, a message each, as low-latency kernels do.

Not modelled: the experts' computing time, routing metadata beside the vectors, and tokens dropped at a capacity limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from testbed.workloads.base import Bytes, Message, Phase, Workload
from testbed.workloads.routing import Counts, Popularity, choose, fit, gini
from transport.errors import ConfigError


class Vectors(NamedTuple):
    """How a token travels. dispatch, combine: bytes of its vector each way. each: once for each of its experts instead
    of once to a rank. op: operation of the messages. depth: outstanding at once towards one rank."""

    dispatch: int
    combine: int
    each: bool = False
    op: str = "write_imm"
    depth: int = 16


def fp8_and_bf16(hidden: int, op: str) -> Vectors:
    """Dispatch in FP8 (a byte an element, without scales), combine in BF16."""
    return Vectors(hidden, 2 * hidden, op=op)


def stream(seed: int, layer: int, rank: int) -> np.random.Generator:
    """Random numbers of one rank in one layer."""
    key = np.array([seed & (2**64 - 1), layer << 20 | rank], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def sends(chosen: Counts, per_rank: int, ranks: int, each: bool) -> Bytes:
    """How many vectors one rank sends to each rank, itself included, for its tokens (rows of expert numbers)."""
    where = chosen // per_rank
    if each:
        return np.bincount(where.ravel(), minlength=ranks).astype(np.int64)
    goes = np.zeros((len(chosen), ranks), dtype=bool)
    goes[np.arange(len(chosen))[:, None], where] = True
    count: Bytes = goes.sum(axis=0).astype(np.int64)
    return count


def exchange(name: str, chosen: Sequence[Counts], per_rank: int, vectors: Vectors) -> tuple[Phase, Phase]:
    """Dispatch and combine of one layer. chosen: for each rank the experts of its tokens."""
    ranks = len(chosen)
    matrix = np.array([sends(rows, per_rank, ranks, vectors.each) for rows in chosen])
    out = messages(matrix, vectors.dispatch, vectors.op, vectors.each)
    back = messages(matrix.T, vectors.combine, vectors.op, vectors.each)
    return Phase(f"{name} dispatch", out, vectors.depth), Phase(f"{name} combine", back, vectors.depth)


def measured(
    ranks: int, layers: Mapping[int, Popularity], tokens: int, vectors: Vectors, seed: int
) -> Workload:  # fmt: skip
    """Layers whose experts are chosen as often as was measured. tokens: on each rank."""
    phases: list[Phase] = []
    notes = []
    for layer, popular in layers.items():
        experts = len(popular.counts)
        per_rank = experts_per_rank(experts, ranks)
        weights = fit(popular.counts, popular.top_k)
        chosen = [choose(weights, tokens, popular.top_k, stream(seed, layer, rank)) for rank in range(ranks)]
        found = gini(np.bincount(np.concatenate(chosen).ravel(), minlength=experts))
        notes.append(f"layer {layer}: Gini of expert choices {found:.3f} (measured {gini(popular.counts):.3f})")
        phases += exchange(f"layer {layer}", chosen, per_rank, vectors)
    return Workload(ranks, tuple(phases), tuple(notes))


def experts_per_rank(experts: int, ranks: int, of: str = "there are") -> int:
    """ConfigError if the experts cannot be spread evenly."""
    if experts % ranks:
        allowed = ", ".join(str(n) for n in range(2, experts + 1) if experts % n == 0)
        raise ConfigError(f"ranks = {ranks}: {of} {experts} experts, allowed are its divisors {allowed}")
    return experts // ranks


def messages(count: Bytes, size: int, op: str, each: bool = False) -> tuple[Message, ...]:
    """What goes from rank i to every other rank j: count[i, j] messages of `size` bytes, or one with all of them. Rank
    i begins with rank i + 1, so that not all begin with rank 0."""
    ranks = len(count)
    found: list[Message] = []
    for src in range(ranks):
        for dst in (*range(src + 1, ranks), *range(src)):
            number = int(count[src, dst])
            if each:
                found += [Message(src, dst, size, op)] * number
            elif number:
                found.append(Message(src, dst, number * size, op))
    return tuple(found)

"""The AllToAll of mixture-of-experts layers under expert parallelism: dispatch, then combine.

Experts lie on ranks in contiguous blocks. In dispatch a token's hidden vector goes once to every other rank that holds
one of its experts, in FP8 (one byte an element); in combine each of those ranks sends its partial result back in BF16
(two bytes). One message for each pair of ranks, a WRITE with immediate into memory registered beforehand.

Not modelled: the experts' computing time, scales beside FP8 elements, and tokens dropped at a capacity limit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.workloads.base import Bytes, Message, Phase, Workload
from testbed.workloads.routing import choose, fit, gini, popularity
from transport.errors import ConfigError

DISPATCH_BYTES = 1  #: FP8
COMBINE_BYTES = 2  #: BF16


def tokens_to_ranks(chosen: Bytes, per_rank: int, ranks: int) -> Bytes:
    """How many of the tokens (rows of expert numbers) go to each rank, each token counted once a rank."""
    goes = np.zeros((len(chosen), ranks), dtype=bool)
    goes[np.arange(len(chosen))[:, None], chosen // per_rank] = True
    count: Bytes = goes.sum(axis=0).astype(np.int64)
    return count


def moe(
    ranks: int, model: str, domain: str, layers: Sequence[int], tokens: int, hidden: int, op: str, seed: int
) -> Workload:
    """Dispatch and combine of each layer. tokens: on each rank; hidden: elements of a token's vector."""
    phases = []
    notes = []
    for layer in layers:
        popular = popularity(model, domain, layer)
        experts = len(popular.counts)
        if experts % ranks:
            raise ConfigError(f"ranks = {ranks}: {model} has {experts} experts, allowed are its divisors")
        weights = fit(popular.counts, popular.top_k)
        matrix = np.zeros((ranks, ranks), dtype=np.int64)
        selections = np.zeros(experts, dtype=np.int64)
        for rank in range(ranks):
            key = np.array([seed & (2**64 - 1), layer << 20 | rank], dtype=np.uint64)
            chosen = choose(weights, tokens, popular.top_k, np.random.Generator(np.random.Philox(key=key)))
            selections += np.bincount(chosen.ravel(), minlength=experts)
            matrix[rank] = tokens_to_ranks(chosen, experts // ranks, ranks)
        np.fill_diagonal(matrix, 0)
        notes.append(
            f"layer {layer}: Gini of expert choices {gini(selections):.3f} (measured {gini(popular.counts):.3f})"
        )
        phases.append(Phase(f"layer {layer} dispatch", _messages(matrix, hidden * DISPATCH_BYTES, op)))
        phases.append(Phase(f"layer {layer} combine", _messages(matrix.T, hidden * COMBINE_BYTES, op)))
    return Workload(ranks, tuple(phases), tuple(notes))


def _messages(tokens: Bytes, each: int, op: str) -> tuple[Message, ...]:
    """A message for every pair with tokens. Rank r begins with rank r + 1, so that not all begin with rank 0."""
    ranks = len(tokens)
    return tuple(
        Message(src, (src + step) % ranks, int(tokens[src, (src + step) % ranks]) * each, op)
        for src in range(ranks)
        for step in range(1, ranks)
        if tokens[src, (src + step) % ranks]
    )

"""Workloads out of files: byte matrices, connection matrices and routing traces, read by testbed.workloads.readers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from testbed.units import MAX_SIZE
from testbed.workloads.base import Bytes, Message, Phase, Workload
from testbed.workloads.moe import Vectors, exchange, experts_per_rank, messages
from testbed.workloads.readers.cm import ConnectionMatrix
from testbed.workloads.readers.trace import Trace
from testbed.workloads.routing import Counts, gini
from transport.errors import ConfigError


def folded(values: Bytes, ranks: int) -> Bytes:
    """A square matrix with contiguous blocks of rows and columns added up, so that it is one of `ranks` ranks."""
    block = len(values) // ranks
    total: Bytes = values.reshape(ranks, block, ranks, block).sum(axis=(1, 3))
    return total


def from_matrix(values: Bytes, ranks: int, unit: float, op: str) -> Workload:
    """One phase. unit: bytes for each count of the matrix. Self traffic is not sent, and is noted."""
    if len(values) % ranks:
        raise ConfigError(f"ranks = {ranks}: the matrix has {len(values)} rows, allowed are its divisors")
    sizes = np.floor(folded(values, ranks) * unit).astype(np.int64)
    own = int(sizes.trace())
    np.fill_diagonal(sizes, 0)
    if not sizes.any():
        raise ConfigError(f"unit = {unit:g}: no rank has anything to send to another")
    if sizes.max() > MAX_SIZE:
        raise ConfigError(f"unit = {unit:g}: the largest message would have {sizes.max()} B, allowed are {MAX_SIZE}")
    to = sizes.sum(axis=0)
    notes = [
        f"matrix: {sizes.sum()} B between ranks, {own} B of self traffic are not sent; received: max/mean "
        f"{to.max() / to.mean():.3f} (rank {to.argmax()}), Gini {gini(to):.4f}"
    ]
    return Workload(ranks, (Phase("matrix", messages(sizes, 1, op)),), tuple(notes))


def from_connections(matrix: ConnectionMatrix, op: str, depth: int, scale: float) -> Workload:
    """One phase with a message for each connection, in the order of the file. scale: starts are multiplied by it.

    A message that a trigger starts has those that fire it as its `after`. These are complete at their poster, so a
    `recv_done_trigger` fires as late as a `send_done_trigger`.
    """
    exact = Fraction(scale)
    messages = tuple(
        Message(c.src, c.dst, c.size, op, round((c.start or 0) * exact), awaited or ())
        for c, awaited in zip(matrix.connections, matrix.after(), strict=True)
    )
    notes = list(matrix.notes)
    if any(c.recv_done_trigger for c in matrix.connections):
        notes.append("recv_done_trigger: fires when the sender knows, as send_done_trigger does")
    multishot = {trigger.id for trigger in matrix.triggers if trigger.kind == "multishot"}
    shot = sum(c.trigger in multishot for c in matrix.connections)
    if shot:
        notes.append(f"multishot: each of {shot} connections waits for a fixed one of those that fire its trigger")
    if matrix.failures:
        notes.append(f"failures: {len(matrix.failures)} dead links are not modelled")
    if any(c.priority is not None for c in matrix.connections):
        notes.append("prio: priorities are not modelled")
    return Workload(matrix.nodes, (Phase("connections", messages, depth),), tuple(notes))


def from_trace(trace: Trace, ranks: int, passes: int, layers: Sequence[int], vectors: Vectors) -> Workload:
    """Dispatch and combine of each layer of the first `passes` passes. layers: those wanted, none for all.

    If the trace has exactly as many ranks as the workload, each sends its own tokens; else the tokens of a pass are
    dealt out in order, in equal blocks.
    """
    per_rank = experts_per_rank(trace.experts, ranks)
    steps = list(dict.fromkeys(batch.step for batch in trace.batches))[:passes]
    present = sorted({batch.layer for batch in trace.batches})
    for layer in layers:
        if layer not in present:
            raise ConfigError(f"layers = {list(layers)}: allowed are {', '.join(map(str, present))}")
    own_ranks = {batch.rank for batch in trace.batches} == set(range(ranks))
    phases: list[Phase] = []
    notes = []
    for step in steps:
        for layer in layers or present:
            batches = {b.rank: b.chosen for b in trace.batches if (b.step, b.layer) == (step, layer)}
            if not batches:
                continue
            name = f"step {step} layer {layer}"
            every = np.concatenate(list(batches.values()))
            counts = np.bincount(every.ravel(), minlength=trace.experts)
            notes.append(
                f"{name}: {len(every)} tokens, Gini of expert choices {gini(counts):.3f}, max/mean "
                f"{counts.max() / counts.mean():.2f}"
            )
            none: Counts = np.zeros((0, every.shape[1]), dtype=np.int64)
            dealt = [batches.get(rank, none) for rank in range(ranks)] if own_ranks else np.array_split(every, ranks)
            phases += exchange(name, dealt, per_rank, vectors)
    return Workload(ranks, tuple(phases), tuple(notes))

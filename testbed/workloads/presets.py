"""Mixture-of-experts traffic of known models and kernels, with made-up routing of a given skew.

Sources: DeepSeek-V3, arXiv 2412.19437, for the model, for node-limited routing in prefill, and for 32 redundant experts
in decode; the README of DeepEP for its low-latency kernels and their message formats; MegaScale-Infer, arXiv
2504.02263, for the other models. Where these give no number of tokens, 256 a rank are taken.

Not modelled: shared experts, which every rank has, and a placement of experts that lags behind their popularity.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from testbed.workloads.base import Phase, Workload
from testbed.workloads.moe import Vectors, exchange, experts_per_rank, stream
from testbed.workloads.routing import Counts, Floats, choose, choose_within, gini, weights_of
from testbed.workloads.skew import Mode, popularities, shares
from transport.errors import ConfigError

#: Elements that share one FP8 scale of 4 bytes.
_SCALED = 128


@dataclass(frozen=True)
class Preset:
    """One model as one kind of kernel carries it.

    ranks, tokens (of a rank), hidden, experts, top_k: its own size. layers: mixture-of-experts layers of the model,
    each a dispatch and a combine. header: bytes before each dispatched vector. fp8: dispatch in FP8 with scales instead
    of BF16; combine is always BF16. each: a message for each choice of an expert instead of one for each pair of ranks.
    max_nodes: nodes that a token's experts may be on, 0 for any. redundant: experts with a second copy, the most
    popular of each layer, whose tokens take turns between the copies.
    """

    ranks: int
    tokens: int
    hidden: int
    experts: int
    top_k: int
    layers: int
    header: int = 0
    fp8: bool = False
    each: bool = False
    max_nodes: int = 0
    redundant: int = 0

    @property
    def alltoalls(self) -> int:
        """Of one forward pass."""
        return 2 * self.layers

    def vectors(self) -> Vectors:
        """How its tokens travel. ConfigError if the hidden size does not fit the scales."""
        bf16 = 2 * self.hidden
        if not self.fp8:
            return Vectors(self.header + bf16, bf16, self.each, "write" if self.each else "write_imm")
        if self.hidden % _SCALED:
            raise ConfigError(f"hidden = {self.hidden}: allowed are multiples of {_SCALED}, which share a scale")
        scales = 4 * (self.hidden // _SCALED)
        return Vectors(self.header + self.hidden + scales, bf16, self.each, "write" if self.each else "write_imm")

    def bytes_of_choices(self) -> tuple[int, int]:
        """Logical bytes of one rank in dispatch and in combine: every choice of every token, those of its own experts
        included. What is sent is less by these, and by what is sent once to a rank."""
        vectors = self.vectors()
        choices = self.tokens * self.top_k
        return choices * vectors.dispatch, choices * vectors.combine


_DEEPSEEK_V3 = Preset(ranks=8, tokens=128, hidden=7168, experts=256, top_k=8, layers=58, fp8=True)
_LOW_LATENCY = replace(_DEEPSEEK_V3, header=16, each=True)

PRESETS: dict[str, Preset] = {
    "deepep-ll": _LOW_LATENCY,
    "dsv3-prefill": replace(_DEEPSEEK_V3, ranks=32, tokens=16384, max_nodes=4),
    "dsv3-decode": replace(_LOW_LATENCY, ranks=144, redundant=32),
    "mixtral-8x22b": Preset(ranks=8, tokens=256, hidden=6144, experts=8, top_k=2, layers=56),
    "dbrx": Preset(ranks=16, tokens=256, hidden=6144, experts=16, top_k=4, layers=40),
    "scaled-moe": Preset(ranks=32, tokens=256, hidden=8192, experts=32, top_k=4, layers=48),
}


@dataclass(frozen=True)
class Skew:
    """gini: of the experts' popularity. mode: what becomes of it from layer to layer."""

    gini: float
    mode: Mode


def check(preset: Preset, skew: Skew, ranks_per_node: int) -> None:
    """ConfigError if these do not go together; the text begins with the key."""
    preset.vectors()
    experts_per_rank(preset.experts + preset.redundant, preset.ranks)
    if preset.redundant > preset.experts:
        raise ConfigError(f"redundant = {preset.redundant}: allowed are 0 to the {preset.experts} experts")
    if preset.max_nodes:
        _check_nodes(preset, ranks_per_node)
    shares(preset.experts, skew.gini, preset.top_k, np.random.Generator(np.random.Philox(key=0)))


def _check_nodes(preset: Preset, ranks_per_node: int) -> None:
    if preset.ranks % ranks_per_node:
        raise ConfigError(f"ranks_per_node = {ranks_per_node}: allowed are the divisors of the {preset.ranks} ranks")
    if preset.redundant:
        raise ConfigError(f"redundant = {preset.redundant}: allowed is 0 where max_nodes limits the nodes of a token")
    nodes = preset.ranks // ranks_per_node
    if min(preset.max_nodes, nodes) * (preset.experts // nodes) < preset.top_k:
        raise ConfigError(f"max_nodes = {preset.max_nodes}: so many nodes have less than {preset.top_k} experts")


def traffic(preset: Preset, layers: int, skew: Skew, ranks_per_node: int, depth: int, seed: int) -> Workload:
    """Dispatch and combine of `layers` layers. depth: messages outstanding at once towards one rank."""
    check(preset, skew, ranks_per_node)
    vectors = preset.vectors()._replace(depth=depth)
    per_rank = experts_per_rank(preset.experts + preset.redundant, preset.ranks)
    nodes = preset.ranks // ranks_per_node
    drawn = np.random.Generator(np.random.Philox(key=np.array([seed & (2**64 - 1), 1 << 63], dtype=np.uint64)))
    phases: list[Phase] = []
    notes = []
    for layer, popular in enumerate(
        popularities(skew.mode, layers, preset.experts, skew.gini, preset.top_k, drawn)
    ):  # fmt: skip
        weights = weights_of(popular, preset.top_k)
        chosen = [_choose(preset, weights, nodes, stream(seed, layer, rank)) for rank in range(preset.ranks)]
        found = gini(np.bincount(np.concatenate(chosen).ravel(), minlength=preset.experts))
        slots = _slots(popular, preset.redundant, preset.ranks)
        placed = [_placed(rows, slots) for rows in chosen]
        pair = exchange(f"layer {layer}", placed, per_rank, vectors)
        phases += pair
        notes.append(_note(layer, found, skew.gini, pair, preset))
    return Workload(preset.ranks, tuple(phases), tuple(notes))


def _choose(preset: Preset, weights: Floats, nodes: int, rng: np.random.Generator) -> Counts:
    if 0 < preset.max_nodes < nodes:
        return choose_within(weights, preset.tokens, preset.top_k, nodes, preset.max_nodes, rng)
    return choose(weights, preset.tokens, preset.top_k, rng)


def _slots(popular: Floats, redundant: int, ranks: int) -> tuple[Counts, Counts]:
    """The slot of each expert, and the one of its copy (the same if it has none). Slots are numbered along the ranks.

    Without copies experts lie in order. With copies, those with the largest share of choices are placed first, each on
    the rank that has least so far and a slot left.
    """
    experts = len(popular)
    own = np.arange(experts)
    if not redundant:
        return own, own
    copied = np.argsort(-popular, kind="stable")[:redundant]
    whose = np.concatenate([own, copied])
    share = popular / np.bincount(whose)
    per_rank = len(whose) // ranks
    load, used = np.zeros(ranks), np.zeros(ranks, dtype=np.int64)
    slot = np.zeros(len(whose), dtype=np.int64)
    for number in np.argsort(-share[whose], kind="stable"):
        rank = int(np.where(used < per_rank, load, np.inf).argmin())
        slot[number] = rank * per_rank + used[rank]
        load[rank] += share[whose[number]]
        used[rank] += 1
    second = slot[:experts].copy()
    second[copied] = slot[experts:]
    return slot[:experts], second


def _placed(chosen: Counts, slots: tuple[Counts, Counts]) -> Counts:
    """Slots instead of experts; every other token uses the copies."""
    odd = np.arange(len(chosen))[:, None] % 2 == 1
    return np.where(odd, slots[1][chosen], slots[0][chosen])


def _note(layer: int, found: float, wanted: float, pair: tuple[Phase, Phase], preset: Preset) -> str:
    logical = [preset.ranks * size for size in preset.bytes_of_choices()]
    return (
        f"layer {layer}: Gini of expert choices {found:.3f} (asked {wanted:.3f}); every choice is {logical[0]} + "
        f"{logical[1]} B, of which {pair[0].logical_bytes} + {pair[1].logical_bytes} B go to other ranks"
    )

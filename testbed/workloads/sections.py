"""The [workload] section of a scenario file: a model for each kind. The keys are explained in docs/scenarios.md."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, Union, get_args

import numpy as np
from pydantic import Field

from testbed.sections import Section, Size
from testbed.workloads import basic, collectives, exchange, measured, moe, moving, presets, replay, skew
from testbed.workloads.base import Workload
from testbed.workloads.readers import cm, counts, matrix, trace
from testbed.workloads.readers.files import PACKAGE, found_in, packaged, read_text
from testbed.workloads.routing import Floats, Popularity
from transport.clock import US
from transport.errors import ConfigError

#: Ranks where each talks to few others, or to nobody.
MOST_HOSTS = 16384

Op: TypeAlias = Literal["write", "write_imm", "send", "read"]
Ranks: TypeAlias = Annotated[int, Field(ge=2, le=256)]
ManyRanks: TypeAlias = Annotated[int, Field(ge=2, le=MOST_HOSTS)]
Tokens: TypeAlias = Annotated[int, Field(ge=1, le=65536)]
Hidden: TypeAlias = Annotated[int, Field(ge=1, le=65536)]
Gini: TypeAlias = Annotated[float, Field(ge=0.0, le=0.99)]
LayerNumbers: TypeAlias = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class WorkloadSection(Section):
    """Base of all kinds."""

    @property
    def outstanding(self) -> int:
        """Messages that a rank may have outstanding towards one other; 1 where it has only one in a phase."""
        return 1

    def make(self, seed: int, scale: float) -> Workload:
        """The workload. scale: intervals between messages are multiplied by it."""
        raise NotImplementedError

    def check(self) -> None:
        """The checks that need more than one key, or a file. A ConfigError that is about a key begins with its name."""


class _Flows(WorkloadSection):
    """interval_us: from one message of a flow to the next at least, 0 for as fast as depth allows."""

    messages: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    size: Size = 1 << 20
    op: Op = "write"
    depth: Annotated[int, Field(ge=1, le=1024)] = 16
    interval_us: Annotated[float, Field(ge=0, le=1e6)] = 0.0

    @property
    def outstanding(self) -> int:
        return self.depth

    def flow(self, scale: float) -> basic.Flow:
        return basic.Flow(self.messages, self.size, self.op, self.depth, round(self.interval_us * scale * US))


class PairWorkload(_Flows):
    """Rank 0 sends to rank 1."""

    kind: Literal["pair"]
    ranks: Literal[2] = 2
    phases: Annotated[int, Field(ge=1, le=1000)] = 1

    def make(self, seed: int, scale: float) -> Workload:
        return basic.pair(self.flow(scale), self.phases)


class IncastWorkload(_Flows):
    """All ranks send to rank 0."""

    kind: Literal["incast"]
    ranks: ManyRanks = 9

    def make(self, seed: int, scale: float) -> Workload:
        return basic.incast(self.ranks, self.flow(scale))


class MovingIncastWorkload(WorkloadSection):
    """Every rank sends `messages` to others every `every_us`, each with probability `share` to the one that is hot this
    time, `moves` times."""

    kind: Literal["moving_incast"]
    ranks: Ranks = 64
    moves: Annotated[int, Field(ge=1, le=1000)] = 6
    every_us: Annotated[float, Field(gt=0, le=1e6)] = 400.0
    messages: Annotated[int, Field(ge=1, le=1000)] = 4
    size: Size = 1 << 16
    share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.25

    def make(self, seed: int, scale: float) -> Workload:
        every = round(self.every_us * scale * US)
        return moving.moving_incast(self.ranks, self.moves, every, self.messages, self.size, self.share, seed)

    @property
    def outstanding(self) -> int:
        return moving.DEPTH


class OneToNWorkload(_Flows):
    """Rank 0 sends to all others."""

    kind: Literal["one_to_n"]
    ranks: Ranks = 9

    def make(self, seed: int, scale: float) -> Workload:
        return basic.one_to_n(self.ranks, self.flow(scale))


class PermutationWorkload(_Flows):
    """Every rank sends to one and receives from one."""

    kind: Literal["permutation"]
    ranks: ManyRanks = 8

    def make(self, seed: int, scale: float) -> Workload:
        return basic.permutation(self.ranks, self.flow(scale), seed)


class AllToAllWorkload(_Flows):
    """Every rank sends the same to every other."""

    kind: Literal["alltoall"]
    ranks: Ranks = 8

    def make(self, seed: int, scale: float) -> Workload:
        return basic.alltoall(self.ranks, self.flow(scale))


class AllReduceWorkload(WorkloadSection):
    """AllReduce of a buffer of `size` bytes on every rank."""

    kind: Literal["allreduce"]
    ranks: Ranks = 8
    algorithm: Literal["ring", "tree"] = "ring"
    size: Size = 1 << 20
    op: Op = "write_imm"

    def make(self, seed: int, scale: float) -> Workload:
        return (collectives.ring if self.algorithm == "ring" else collectives.tree)(self.ranks, self.size, self.op)

    def check(self) -> None:
        least = self.ranks if self.algorithm == "ring" else 1
        if self.size < least:
            raise ConfigError(f"size = {self.size}: allowed is at least {least} for {self.ranks} ranks")


class ExchangeWorkload(WorkloadSection):
    """M attention ranks and N expert ranks exchange the vectors of tokens, both directions at once.

    tokens: of every attention rank, or a number for each. weights: what a token needs of each expert rank, summing to
    top_k; without it they are lognormal with Gini `gini` and change with `popularity` from layer to layer. tp: ranks
    that share a hidden vector.
    """

    kind: Literal["m2n"]
    attention: Annotated[int, Field(ge=1, le=255)] = 6
    experts: Annotated[int, Field(ge=1, le=255)] = 2
    tokens: Tokens | list[Tokens] = 128
    top_k: Annotated[int, Field(ge=1, le=64)] = 2
    weights: list[Annotated[float, Field(ge=0.0)]] | None = None
    gini: Gini = 0.0
    popularity: skew.Mode = "moved"
    hidden: Hidden = 4096
    element_bytes: Annotated[int, Field(ge=1, le=8)] = 2
    tp: Annotated[int, Field(ge=1, le=256)] = 1
    layers: Annotated[int, Field(ge=1, le=1000)] = 2
    op: Op = "write_imm"

    @property
    def ranks(self) -> int:
        return self.attention + self.experts

    def make(self, seed: int, scale: float) -> Workload:
        batch = self.tokens if isinstance(self.tokens, list) else [self.tokens] * self.attention
        vector = self.hidden * self.element_bytes / self.tp
        return exchange.m2n(batch, self._weights(seed), vector, self.op)

    def _weights(self, seed: int) -> list[Floats]:
        if self.weights is not None:
            return [np.array(self.weights)] * self.layers
        rng = np.random.Generator(np.random.Philox(key=seed))
        # An expert rank may hold several experts of a token, so nothing bounds its share: top_k = 1 of the shares.
        found = skew.popularities(self.popularity, self.layers, self.experts, self.gini, 1, rng)
        return [self.top_k * of_layer for of_layer in found]

    def check(self) -> None:
        if isinstance(self.tokens, list) and len(self.tokens) != self.attention:
            raise ConfigError(f"tokens has {len(self.tokens)} numbers: allowed is one for all, or {self.attention}")
        if self.hidden % self.tp:
            raise ConfigError(f"tp = {self.tp}: allowed are the divisors of hidden = {self.hidden}")
        if self.weights is None:
            self._weights(0)
            return
        if len(self.weights) != self.experts:
            raise ConfigError(f"weights has {len(self.weights)} numbers: allowed are {self.experts}")
        if abs(sum(self.weights) - self.top_k) > 1e-6 * self.top_k:
            raise ConfigError(f"weights have the sum {sum(self.weights):g}: allowed is top_k = {self.top_k}")


class MoeWorkload(WorkloadSection):
    """Dispatch and combine of mixture-of-experts layers with measured expert popularity.

    size: a preset of tokens (on each rank) and hidden (elements of a token's vector); either may be given as well.
    """

    kind: Literal["moe"]
    ranks: Ranks = 8
    size: Literal["full", "small"] = "full"
    model: str = "olmoe"
    domain: str = "wikipedia"
    layers: LayerNumbers = Field(default_factory=lambda: [0, 7, 15])
    tokens: Tokens | None = None
    hidden: Hidden | None = None
    op: Op = "write_imm"

    def make(self, seed: int, scale: float) -> Workload:
        tokens, hidden = (512, 2048) if self.size == "full" else (64, 128)
        vectors = moe.fp8_and_bf16(self.hidden or hidden, self.op)
        return moe.measured(self.ranks, self._popular(), self.tokens or tokens, vectors, seed)

    def _popular(self) -> dict[int, Popularity]:
        return {layer: measured.popularity(self.model, self.domain, layer) for layer in self.layers}

    def check(self) -> None:
        for popular in self._popular().values():
            moe.experts_per_rank(len(popular.counts), self.ranks, f"{self.model} has")


class PresetWorkload(WorkloadSection):
    """Dispatch and combine of a known model (testbed.workloads.presets) with made-up routing.

    What is not given is the preset's. gini: of the experts' popularity; popularity: how it changes from layer to layer.
    layers: how many of the model's are run.
    """

    kind: Literal["moe_preset"]
    preset: Literal["deepep-ll", "dsv3-prefill", "dsv3-decode", "mixtral-8x22b", "dbrx", "scaled-moe"]
    ranks: Ranks | None = None
    tokens: Tokens | None = None
    hidden: Hidden | None = None
    layers: Annotated[int, Field(ge=1, le=1000)] = 2
    gini: Gini = 0.24
    popularity: skew.Mode = "moved"
    ranks_per_node: Annotated[int, Field(ge=1, le=256)] | None = None
    max_nodes: Annotated[int, Field(ge=0, le=256)] | None = None
    redundant: Annotated[int, Field(ge=0, le=65536)] | None = None
    depth: Annotated[int, Field(ge=1, le=1024)] = 16

    @property
    def outstanding(self) -> int:
        return self.depth

    def whole(self) -> presets.Preset:
        """The preset with what was given in it."""
        names = ("ranks", "tokens", "hidden", "max_nodes", "redundant")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(presets.PRESETS[self.preset], **given)

    def _ranks_per_node(self) -> int:
        return min(8, self.whole().ranks) if self.ranks_per_node is None else self.ranks_per_node

    def make(self, seed: int, scale: float) -> Workload:
        how = presets.Skew(self.gini, self.popularity)
        return presets.traffic(self.whole(), self.layers, how, self._ranks_per_node(), self.depth, seed)

    def check(self) -> None:
        presets.check(self.whole(), presets.Skew(self.gini, self.popularity), self._ranks_per_node())


class FileSection(WorkloadSection):
    """Base of the kinds that read a file: its path, or "package:" and the name of one that comes with the package."""

    file: str

    def found_in(self, folder: Path) -> FileSection:
        """The same with the path of the file as it is from here."""
        return self.model_copy(update={"file": found_in(folder, self.file)})

    def text(self) -> str:
        return packaged(self.file) if self.file.startswith(PACKAGE) else read_text(Path(self.file))

    def check(self) -> None:
        self.make(0, 1.0)


class CountsWorkload(FileSection):
    """As `moe`, with expert counts from a file. model, domain: which of those in the table, if it has several.
    layers: those wanted, all if not given. top_k: experts of a token, if the table does not say."""

    kind: Literal["counts"]
    ranks: Ranks = 8
    model: str = ""
    domain: str = ""
    layers: LayerNumbers | None = None
    top_k: Annotated[int, Field(ge=1, le=64)] | None = None
    tokens: Tokens = 64
    hidden: Hidden = 2048
    op: Op = "write_imm"

    def make(self, seed: int, scale: float) -> Workload:
        return moe.measured(self.ranks, self._popular(), self.tokens, moe.fp8_and_bf16(self.hidden, self.op), seed)

    def check(self) -> None:
        for popular in self._popular().values():
            moe.experts_per_rank(len(popular.counts), self.ranks)

    def _popular(self) -> dict[int, Popularity]:
        table = counts.parse(self.text(), self.file)
        model, domain = self.model, self.domain
        wanted = self.layers or [key.layer for key in table if (key.model, key.domain) == (model, domain)] or [0]
        found = {layer: measured.pick(table, model, domain, layer) for layer in wanted}
        return {layer: self._with_top_k(layer, popular) for layer, popular in found.items()}

    def _with_top_k(self, layer: int, popular: Popularity) -> Popularity:
        if popular.top_k and self.top_k and popular.top_k != self.top_k:
            raise ConfigError(f"top_k = {self.top_k}: {self.file} says {popular.top_k} for layer {layer}")
        top_k = popular.top_k or self.top_k
        usable = int(np.count_nonzero(popular.counts))
        if top_k is None:
            raise ConfigError(f"top_k is missing: {self.file} does not say how many experts a token chooses")
        if top_k > usable:
            raise ConfigError(f"top_k = {top_k}: layer {layer} of {self.file} has {usable} experts that were chosen")
        return Popularity(top_k, popular.counts)


class MatrixWorkload(FileSection):
    """A square matrix of bytes, or of counts of `unit` bytes each. ranks: those of the matrix, or a divisor."""

    kind: Literal["matrix"]
    ranks: Ranks | None = None
    unit: Annotated[float, Field(gt=0, le=1e9)] = 1.0
    op: Op = "write_imm"

    def make(self, seed: int, scale: float) -> Workload:
        values = matrix.parse(self.text(), self.file)
        return replay.from_matrix(values, self.ranks or len(values), self.unit, self.op)


class TraceWorkload(FileSection):
    """A routing trace in JSON lines. steps: how many passes are run. layers: those wanted, all if not given. experts:
    of a layer, if the file does not say. drop_warmup: leave out passes in which every token has the same experts."""

    kind: Literal["trace"]
    ranks: Ranks = 8
    steps: Annotated[int, Field(ge=1, le=1000)] = 2
    layers: LayerNumbers | None = None
    experts: Annotated[int, Field(ge=1, le=65536)] | None = None
    drop_warmup: bool = False
    hidden: Hidden = 2048
    op: Op = "write_imm"

    def make(self, seed: int, scale: float) -> Workload:
        whole = trace.parse(self.text(), self.file, self.experts)
        used = whole.without_warm_up() if self.drop_warmup else whole
        if not used.batches:
            raise ConfigError(f"drop_warmup = true: every pass of {self.file} is a warm-up")
        vectors = moe.fp8_and_bf16(self.hidden, self.op)
        workload = replay.from_trace(used, self.ranks, self.steps, self.layers or (), vectors)
        warm_up = whole.warm_up_note()
        told = (warm_up and warm_up + ("; left out" if self.drop_warmup else ""), used.experts_note())
        return replace(workload, notes=(*filter(None, told), *workload.notes))


class ConnectionsWorkload(FileSection):
    """A connection matrix of htsim. unit: of its `start`. lenient: what its header gets wrong is noted, not refused."""

    kind: Literal["cm"]
    unit: cm.Unit = "us"
    lenient: bool = False
    op: Op = "write"
    depth: Annotated[int, Field(ge=1, le=1024)] = 1024

    @property
    def outstanding(self) -> int:
        return self.depth

    def make(self, seed: int, scale: float) -> Workload:
        found = cm.parse(self.text(), self.file, self.unit, self.lenient)
        if found.nodes > MOST_HOSTS:
            raise ConfigError(f"{self.file}: Nodes {found.nodes}: allowed are 2 to {MOST_HOSTS}")
        return replay.from_connections(found, self.op, self.depth, scale)


AnyWorkload: TypeAlias = Annotated[
    Union[  # noqa: UP007  pydantic reads the Union
        PairWorkload, IncastWorkload, OneToNWorkload, PermutationWorkload, MovingIncastWorkload, AllToAllWorkload,
        AllReduceWorkload,
        ExchangeWorkload, MoeWorkload, PresetWorkload, CountsWorkload, MatrixWorkload, TraceWorkload,
        ConnectionsWorkload,
    ],
    Field(discriminator="kind"),
]  # fmt: skip

#: The models by kind.
KINDS: dict[str, type[WorkloadSection]] = {
    get_args(model.model_fields["kind"].annotation)[0]: model for model in get_args(get_args(AnyWorkload)[0])
}

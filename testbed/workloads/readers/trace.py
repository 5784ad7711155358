"""Routing traces in JSON lines: which experts each token of a forward pass chose.

Two kinds of rows. A batch has step, layer, rank, num_tokens, topk and top_indices, a list of topk experts for each
token (or all of them in one list). A token has token_idx, layer and topk_ids; token_idx restarts at 0 with every pass,
and a pass becomes a step. Other keys, such as weights, are passed over. A first row without a layer is about the file
(meta).

Servers begin with warm-up passes in which every token is the same and so has the same experts. They can be most of a
file and make it look far more skewed than it is, so they are found, and left out if asked. A pass counts as one if
each of its batches has at least two tokens and all tokens of a batch have the same experts.

An expert that is in no row is absent, not dead: how many there are is what meta or the caller says, and only for want
of both one more than the highest number seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from testbed.workloads.base import Bytes
from transport.errors import ConfigError

_META_EXPERTS = ("num_experts", "n_routed_experts", "experts")
#: Experts of a layer: no model has more.
_MOST = 1 << 16


class Batch(NamedTuple):
    """What the tokens of one rank chose in one layer of one pass: a row of `chosen` for each token."""

    step: int
    layer: int
    rank: int
    chosen: Bytes


@dataclass(frozen=True)
class Trace:
    """A whole file. experts: of each layer. stated: whether the file or the caller said how many. warm_up: steps that
    are warm-up passes."""

    meta: Mapping[str, Any]
    batches: tuple[Batch, ...]
    experts: int
    stated: bool
    warm_up: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens over all batches, so a token counts once in every layer."""
        return sum(len(batch.chosen) for batch in self.batches)

    @property
    def seen(self) -> int:
        """Experts that occur."""
        return int(np.count_nonzero(self.counts()))

    def without_warm_up(self) -> Trace:
        kept = tuple(batch for batch in self.batches if batch.step not in self.warm_up)
        return replace(self, batches=kept, warm_up=())

    def counts(self) -> Bytes:
        """How often each expert was chosen, over all layers."""
        total = np.zeros(self.experts, dtype=np.int64)
        for batch in self.batches:
            total += np.bincount(batch.chosen.ravel(), minlength=self.experts)
        return total

    def warm_up_note(self) -> str | None:
        """What one must know before believing figures made from all passes."""
        if not self.warm_up:
            return None
        cold = sum(len(batch.chosen) for batch in self.batches if batch.step in self.warm_up)
        return (
            f"warm-up: {len(self.warm_up)} passes (the first is step {self.warm_up[0]}) with "
            f"{100 * cold / self.tokens:.0f} % of the tokens, in which every token has the same experts"
        )

    def experts_note(self) -> str | None:
        """What one must know before taking an expert for dead, or for the last."""
        if self.seen < self.experts:
            return f"experts: {self.seen} of {self.experts} occur; the others are absent, not dead"
        if not self.stated:
            return f"experts: the file does not say how many there are; the highest number is {self.experts - 1}"
        return None


def parse(text: str, source: str, experts: int | None = None) -> Trace:
    """A trace. experts: how many there are in a layer, if the caller knows; else what meta says, else what occurs."""
    reader = _Reader(source)
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            reader.row(number, line)
    batches = reader.finish()
    if not batches:
        raise ConfigError(f"{source}: no row has routed tokens")
    stated = experts if experts is not None else reader.stated_experts()
    highest, where = reader.highest
    if stated is not None and highest >= stated:
        raise ConfigError(f"{source}, line {where}: expert {highest}: allowed are 0 to {stated - 1}")
    total = highest + 1 if stated is None else stated
    return Trace(reader.meta, batches, total, stated is not None, _warm_up(batches))


def _warm_up(batches: Iterable[Batch]) -> tuple[int, ...]:
    uniform: dict[int, bool] = {}
    for batch in batches:
        same = np.sort(batch.chosen, axis=1)
        alike = len(same) >= 2 and bool((same == same[0]).all())
        uniform[batch.step] = uniform.get(batch.step, True) and alike
    return tuple(step for step, alike in uniform.items() if alike)


class _Reader:
    """Collects the rows of one file."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.meta: dict[str, Any] = {}
        self.highest = (-1, 0)
        self._meta_place = ""
        self._first = True
        self._batches: dict[tuple[int, int, int], tuple[int, Bytes]] = {}
        self._tokens: dict[tuple[int, int, int], list[list[int]]] = {}
        self._pass: dict[tuple[int, int], tuple[int, int]] = {}
        self._width: dict[int, tuple[int, int]] = {}

    def row(self, number: int, line: str) -> None:
        """Take in one line."""
        place = f"{self.source}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{place}: not JSON: {str(error)[:80]}: {line[:40]!r}") from None
        if not isinstance(row, dict):
            raise ConfigError(f"{place}: {line[:40]!r}: a row must be a JSON object")
        if self._first and "layer" not in row:
            self.meta, self._meta_place = row, place
        elif "top_indices" in row:
            self._batch(row, number, place)
        elif "topk_ids" in row:
            self._token(row, number, place)
        else:
            raise ConfigError(f"{place}: keys {', '.join(row)[:80]}: neither top_indices nor topk_ids is among them")
        self._first = False

    def finish(self) -> tuple[Batch, ...]:
        """All batches, by step, layer and rank."""
        if self._batches and self._tokens:
            raise ConfigError(
                f"{self.source}: it has rows with top_indices and rows with topk_ids; one kind is allowed"
            )
        batches = {key: chosen for key, (_, chosen) in self._batches.items()}
        batches |= {key: np.array(tokens, dtype=np.int64) for key, tokens in self._tokens.items()}
        return tuple(Batch(*key, batches[key]) for key in sorted(batches) if len(batches[key]))

    def stated_experts(self) -> int | None:
        for name in _META_EXPERTS:
            if name in self.meta:
                return _integer(self.meta, name, self._meta_place, 1, _MOST)
        return None

    def _batch(self, row: Mapping[str, Any], number: int, place: str) -> None:
        key = (_integer(row, "step", place), _integer(row, "layer", place), _integer(row, "rank", place))
        tokens, top_k = _integer(row, "num_tokens", place), _integer(row, "topk", place, 1, _MOST)
        if key in self._batches:
            raise ConfigError(
                f"{place}: step {key[0]}, layer {key[1]}, rank {key[2]} were in line {self._batches[key][0]} already"
            )
        given = row["top_indices"]
        if not isinstance(given, list):
            raise ConfigError(f"{place}: top_indices = {_short(given)}: it must be a list")
        if given and not isinstance(given[0], list):
            if len(given) != tokens * top_k:
                raise ConfigError(
                    f"{place}: top_indices has {len(given)} entries, num_tokens x topk is {tokens * top_k}"
                )
            given = [given[i : i + top_k] for i in range(0, len(given), top_k)]
        if len(given) != tokens:
            raise ConfigError(f"{place}: top_indices is for {len(given)} tokens, num_tokens = {tokens}")
        self._same_width(key[1], top_k, number, place)
        chosen = [self._experts(choice, top_k, "top_indices", number, place) for choice in given]
        self._batches[key] = (number, np.array(chosen, dtype=np.int64).reshape(tokens, top_k))

    def _token(self, row: Mapping[str, Any], number: int, place: str) -> None:
        index, layer = _integer(row, "token_idx", place), _integer(row, "layer", place)
        rank = _integer(row, "rank", place) if "rank" in row else 0
        step, before = self._pass.get((layer, rank), (-1, index))
        if index <= before:
            step += 1
        self._pass[layer, rank] = (step, index)
        experts = self._experts(row["topk_ids"], None, "topk_ids", number, place)
        self._same_width(layer, len(experts), number, place)
        self._tokens.setdefault((step, layer, rank), []).append(experts)

    def _same_width(self, layer: int, top_k: int, number: int, place: str) -> None:
        wanted, line = self._width.setdefault(layer, (top_k, number))
        if top_k != wanted:
            raise ConfigError(f"{place}: {top_k} experts for a token, in line {line} layer {layer} had {wanted}")

    def _experts(self, choice: object, top_k: int | None, name: str, number: int, place: str) -> list[int]:
        """One token's experts, checked."""
        if not isinstance(choice, list) or not choice or (top_k is not None and len(choice) != top_k):
            wanted = "at least one expert" if top_k is None else f"{top_k} experts"
            raise ConfigError(f"{place}: {name} = {_short(choice)}: a list of {wanted} for each token is needed")
        for expert in choice:
            if type(expert) is not int or not 0 <= expert < _MOST:
                raise ConfigError(f"{place}: {name}: expert {_short(expert)}: allowed are 0 to {_MOST - 1}")
        if len(set(choice)) < len(choice):
            raise ConfigError(f"{place}: {name} = {_short(choice)}: a token cannot choose an expert twice")
        if max(choice) > self.highest[0]:
            self.highest = (max(choice), number)
        return choice


def _integer(row: Mapping[str, Any], name: str, place: str, low: int = 0, high: int = 1 << 53) -> int:
    if name not in row:
        raise ConfigError(f"{place}: key {name} is missing")
    value = row[name]
    if type(value) is not int or not low <= value <= high:
        raise ConfigError(f"{place}: {name} = {_short(value)}: allowed are whole numbers from {low} to {high}")
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

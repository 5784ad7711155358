"""Tables of how often each expert was chosen.

Two forms of comma-separated text. With a header: a row for each expert, columns layer, expert and count, and if they
are there model, domain and top_k, in any order. Without: a row for each layer, a column for each expert.

An expert without a row counts as never chosen in this table; that says nothing about whether it is ever chosen. A model
has as many experts in every layer as in the one that names most.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from testbed.workloads.readers.files import whole
from testbed.workloads.routing import Popularity
from transport.errors import ConfigError

#: Experts and layers of a table: no model has more.
_MOST = 1 << 16


class Key(NamedTuple):
    """What was measured. model and domain are "" where the table does not say."""

    model: str
    domain: str
    layer: int


Table = dict[Key, Popularity]

_NEEDED = ("layer", "expert", "count")
_KNOWN = ("model", "domain", "top_k", *_NEEDED)


def parse(text: str, source: str) -> Table:
    """Popularity by model, domain and layer, in the order of the file. top_k is 0 where the table does not say."""
    lines = [(number, line.split(",")) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ConfigError(f"{source}: it is empty")
    header = [word.strip() for word in lines[0][1]]
    labelled = any(word and not word[0].isdigit() and word[0] not in "-+." for word in header)
    table = _labelled(header, lines[0][0], lines[1:], source) if labelled else _plain(lines, source)
    for key, popular in table.items():
        if not popular.counts.any():
            raise ConfigError(f"{source}: layer {key.layer}: all counts are 0")
    return table


def _plain(lines: list[tuple[int, list[str]]], source: str) -> Table:
    table = {}
    wide = len(lines[0][1])
    for layer, (number, words) in enumerate(lines):
        if len(words) != wide:
            raise ConfigError(f"{source}, line {number}: {len(words)} counts, the first row has {wide}")
        counts = [_number(word, "count", f"{source}, line {number}") for word in words]
        table[Key("", "", layer)] = Popularity(0, np.array(counts, dtype=np.int64))
    return table


def _labelled(header: list[str], first: int, lines: list[tuple[int, list[str]]], source: str) -> Table:
    for name in header:
        if name not in _KNOWN or header.count(name) > 1:
            raise ConfigError(f"{source}, line {first}: column {name!r}: allowed are, once each, {', '.join(_KNOWN)}")
    for name in _NEEDED:
        if name not in header:
            raise ConfigError(f"{source}, line {first}: column {name} is missing; there are {', '.join(header)}")
    counts: dict[Key, dict[int, int]] = {}
    top_k: dict[Key, int] = {}
    for number, words in lines:
        place = f"{source}, line {number}"
        if len(words) != len(header):
            raise ConfigError(f"{place}: {len(words)} values for {len(header)} columns")
        row = dict(zip(header, (word.strip() for word in words), strict=True))
        key = Key(row.get("model", ""), row.get("domain", ""), _number(row["layer"], "layer", place, _MOST))
        expert = _number(row["expert"], "expert", place, _MOST)
        chosen = counts.setdefault(key, {})
        if expert in chosen:
            raise ConfigError(f"{place}: expert = {expert} of layer {key.layer} is there twice")
        chosen[expert] = _number(row["count"], "count", place)
        k = _number(row["top_k"], "top_k", place, _MOST) if "top_k" in row else 0
        if top_k.setdefault(key, k) != k:
            raise ConfigError(f"{place}: top_k = {k}: layer {key.layer} had {top_k[key]} before")
    table = {}
    # Those without a row are absent, not dead: a model has as many in every layer.
    experts: dict[str, int] = {}
    for key, chosen in counts.items():
        experts[key.model] = max(experts.get(key.model, 0), 1 + max(chosen))
    for key, chosen in counts.items():
        of_layer = np.zeros(experts[key.model], dtype=np.int64)
        of_layer[list(chosen)] = list(chosen.values())
        table[key] = Popularity(top_k[key], of_layer)
    if not table:
        raise ConfigError(f"{source}: it has a header and no rows")
    return table


def _number(text: str, name: str, place: str, most: int = 1 << 53) -> int:
    value = whole(text.strip())
    if value is None or value > most:
        raise ConfigError(f"{place}: {name} = {text.strip()!r}: allowed are whole numbers from 0 to {most}")
    return value

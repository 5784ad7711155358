"""How popular experts are, made up: lognormal shares of a given Gini coefficient, the same or different in each phase.

A lognormal(0, sigma) has Gini erf(sigma / 2). Few experts drawn from it have another one by chance, so the logarithms
drawn are stretched until the shares have the Gini asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import Literal, TypeAlias

import numpy as np

from testbed.workloads.routing import Floats, gini
from transport.errors import ConfigError

#: fixed: every phase has the same popularity. redrawn: each has a new one. moved: the shares stay and go to other
#: experts.
Mode: TypeAlias = Literal["fixed", "redrawn", "moved"]

_TRIES = 200
#: Largest probability with which a token may choose an expert.
_CERTAIN = 0.9


def gini_of(sigma: float) -> float:
    """Gini coefficient of a lognormal(0, sigma)."""
    return math.erf(sigma / 2)


def sigma_of(wanted: float) -> float:
    """The sigma of a lognormal with that Gini coefficient: 2 erfinv(Gini)."""
    return math.sqrt(2) * NormalDist().inv_cdf((1 + wanted) / 2)


def shares(experts: int, wanted: float, top_k: int, rng: np.random.Generator) -> Floats:
    """Shares of all choices, sum 1, with the Gini coefficient `wanted`. Draws again if an expert would be chosen by
    more than nine tokens in ten. ConfigError if that is always so."""
    for _ in range(_TRIES):
        found = _stretched(rng.standard_normal(experts), wanted)
        if found is not None and top_k * float(found.max()) <= max(_CERTAIN, top_k / experts):
            return found
    raise ConfigError(f"gini = {wanted}: too high for {experts} experts of which a token chooses {top_k}")


def _stretched(scores: Floats, wanted: float) -> Floats | None:
    if wanted == 0:
        return _exponential(0 * scores)
    low, high = 0.0, 4 * sigma_of(wanted)
    if gini(_exponential(high * scores)) < wanted:
        return None
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if gini(_exponential(middle * scores)) < wanted else (low, middle)
    return _exponential(high * scores)


def _exponential(logarithms: Floats) -> Floats:
    weights = np.exp(logarithms - logarithms.max())
    found: Floats = weights / weights.sum()
    return found


def popularities(
    mode: Mode, phases: int, experts: int, wanted: float, top_k: int, rng: np.random.Generator
) -> Iterator[Floats]:  # fmt: skip
    """Shares of the experts in each phase."""
    first = shares(experts, wanted, top_k, rng)
    for phase in range(phases):
        if phase and mode == "redrawn":
            first = shares(experts, wanted, top_k, rng)
        elif phase and mode == "moved":
            first = rng.permutation(first)
        yield first

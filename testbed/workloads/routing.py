"""Mixture-of-experts routing with the popularity of experts that was measured in real models.

Each token chooses its top k experts by Gumbel noise on the experts' log weights, which is sampling without replacement
in proportion to the weights. The weights are fitted so that the *choices* have the measured frequencies: noise on the
logarithm of the frequencies themselves would flatten them (Gini .54 instead of .58 in the most skewed layer).

Not modelled: which experts are chosen together, and how one token's experts in one layer depend on those before.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from transport.errors import ConfigError

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

TABLE = "olmoe_mixtral_layer_expert_counts.csv"

_ROUNDS = 24
_SAMPLE = 4096


class Popularity(NamedTuple):
    """How often each expert of a layer was chosen. top_k: experts a token chooses."""

    top_k: int
    counts: Counts


@cache
def table() -> dict[tuple[str, str, int], Popularity]:
    """(model, domain, layer) to popularity, out of the table that comes with the package."""
    found: dict[tuple[str, str, int], list[tuple[int, int, int]]] = {}
    text = resources.files("testbed.workloads").joinpath("data", TABLE).read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        key = (row["model"], row["domain"], int(row["layer"]))
        found.setdefault(key, []).append((int(row["expert"]), int(row["count"]), int(row["top_k"])))
    layers = {}
    for key, rows in found.items():
        counts = np.zeros(1 + max(expert for expert, _, _ in rows), dtype=np.int64)
        for expert, count, _ in rows:
            counts[expert] = count
        layers[key] = Popularity(rows[0][2], counts)
    return layers


def popularity(model: str, domain: str, layer: int) -> Popularity:
    """The measured popularity of one layer. ConfigError lists what there is."""
    known = table()
    models = sorted({key[0] for key in known})
    domains = sorted({key[1] for key in known if key[0] == model})
    layers = sorted({key[2] for key in known if key[:2] == (model, domain)})
    for name, value, allowed in (("model", model, models), ("domain", domain, domains), ("layer", layer, layers)):
        if value not in allowed:
            raise ConfigError(f"{name} = {value!r}: allowed are {', '.join(map(str, allowed))}")
    return known[model, domain, layer]


def gini(values: npt.ArrayLike) -> float:
    """Gini coefficient, 0 for all equal: sum((2i - n - 1) x_i) / (n sum x) over sorted x, zeros included."""
    x = np.sort(np.asarray(values, dtype=np.float64))
    n = len(x)
    return float(((2 * np.arange(1, n + 1) - n - 1) * x).sum() / (n * x.sum()))


def choose(weights: Floats, tokens: int, top_k: int, rng: np.random.Generator) -> Counts:
    """The experts of each token, a row of `top_k` different ones. weights: logarithms, -inf for never."""
    noisy = weights + rng.gumbel(size=(tokens, len(weights)))
    return np.argpartition(-noisy, top_k - 1, axis=1)[:, :top_k].astype(np.int64)


def fit(counts: Counts, top_k: int) -> Floats:
    """Log weights with which `choose` chooses experts as often as `counts` says. The same for the same counts."""
    rng = np.random.Generator(np.random.Philox(key=top_k))
    wanted = np.maximum(counts / counts.sum(), 1e-12)
    weights: Floats = np.log(wanted)
    average = np.zeros_like(weights)
    for step in range(_ROUNDS):
        seen = np.bincount(choose(weights, _SAMPLE, top_k, rng).ravel(), minlength=len(counts)) + 0.5
        weights = weights + np.log(wanted) - np.log(seen / seen.sum())
        weights -= weights.max()
        if step >= _ROUNDS // 2:  # the second half only moves with the noise of its samples: average it
            average += weights
    fitted: Floats = np.where(counts > 0, average / (_ROUNDS - _ROUNDS // 2), -np.inf)
    return fitted

"""Mixture-of-experts routing: which experts each token chooses.

A token takes the top k of the experts' log weights with Gumbel noise on them, which is sampling without replacement in
proportion to the weights. The weights are made such that the *choices* have the wanted frequencies: noise on the
logarithm of the frequencies themselves would flatten them (Gini .54 instead of .58 in OLMoE's most skewed layer).

Not modelled: which experts are chosen together, and how one token's experts in one layer depend on those before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

_ROUNDS = 24
_SAMPLE = 4096
#: Experts for each one chosen from which on `weights_of` needs no trial.
_FEW = 16


class Popularity(NamedTuple):
    """How often each expert of a layer was chosen. top_k: experts a token chooses, 0 if not known."""

    top_k: int
    counts: Counts


def gini(values: npt.ArrayLike) -> float:
    """Gini coefficient, 0 for all equal: sum((2i - n - 1) x_i) / (n sum x) over sorted x, zeros included."""
    x = np.sort(np.asarray(values, dtype=np.float64))
    n = len(x)
    return float(((2 * np.arange(1, n + 1) - n - 1) * x).sum() / (n * x.sum()))


def choose(weights: Floats, tokens: int, top_k: int, rng: np.random.Generator) -> Counts:
    """The experts of each token, a row of `top_k` different ones. weights: logarithms, -inf for never."""
    return _top(weights + rng.gumbel(size=(tokens, len(weights))), top_k)


def choose_within(
    weights: Floats, tokens: int, top_k: int, nodes: int, most: int, rng: np.random.Generator
) -> Counts:  # fmt: skip
    """As `choose`, with the experts of a token on at most `most` of `nodes` nodes.

    Experts lie on nodes in contiguous blocks. First the nodes: those whose best top_k / most experts have the highest
    sum of noisy log weights. Then the best top_k experts on them. This is the node-limited routing of DeepSeek-V3
    (arXiv 2412.19437, section 2.1.2) with noisy log weights for affinities. It makes choices a little more even over
    nodes than the weights are.
    """
    noisy = weights + rng.gumbel(size=(tokens, len(weights)))
    by_node = noisy.reshape(tokens, nodes, -1)
    best = max(1, top_k // most)
    scores = np.partition(by_node, -best, axis=2)[:, :, -best:].sum(axis=2)
    barred = np.ones((tokens, nodes), dtype=bool)
    np.put_along_axis(barred, _top(scores, most), False, axis=1)
    return _top(np.where(barred[:, :, None], -np.inf, by_node).reshape(tokens, -1), top_k)


def _top(scores: Floats, count: int) -> Counts:
    return np.argpartition(-scores, count - 1, axis=1)[:, :count].astype(np.int64)


def weights_of(shares: Floats, top_k: int) -> Floats:
    """Log weights with which experts get these shares of all choices (sum 1, each below 1 / top_k).

    Top k by Gumbel noise is order sampling with exponential ranks. Where few of many are chosen, an expert is among
    them with probability p if its rate is -log(1 - p) (Rosen 1997, J. Stat. Plan. Inference 62, 159), which for small p
    is the share itself but for a factor. Else the weights are found by trial.
    """
    if _FEW * top_k > len(shares):
        return fit(shares, top_k)
    with np.errstate(divide="ignore"):  # a share of 0 is never chosen: -inf
        found: Floats = np.log(-np.log1p(-top_k * shares))
    return found


def fit(counts: Counts | Floats, top_k: int) -> Floats:
    """Log weights with which `choose` chooses experts as often as `counts` says, by trial. The same for the same
    counts."""
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

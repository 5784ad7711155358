"""Presets of known models: their bytes, their routing, and that large ones can be made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from testbed.workloads import presets, skew
from testbed.workloads.base import Phase, Workload, received_by, sent_by
from testbed.workloads.presets import PRESETS, Preset, Skew
from testbed.workloads.routing import choose, gini, weights_of
from transport.errors import ConfigError

LEVELS = ((0.187, 0.105), (0.267, 0.150), (0.432, 0.24), (0.70, 0.38))
EVEN = Skew(0.0, "fixed")


def traffic(preset: Preset, layers: int = 1, how: Skew = EVEN, per_node: int = 8, seed: int = 1) -> Workload:
    return presets.traffic(preset, layers, how, min(per_node, preset.ranks), 16, seed)


def test_e6_bytes_of_the_low_latency_kernels() -> None:
    preset = PRESETS["deepep-ll"]
    vectors = preset.vectors()
    assert vectors.dispatch == 16 + 7168 + 224 == 7_408
    assert vectors.combine == 14_336
    assert (preset.tokens, preset.top_k, preset.experts) == (128, 8, 256)
    assert preset.bytes_of_choices() == (7_585_792, 14_680_064)


@pytest.mark.parametrize("ranks", [8, 16, 32, 64, 128, 256])
def test_e6_every_choice_is_a_message_of_its_own_at_every_degree_of_parallelism(ranks: int) -> None:
    preset = replace(PRESETS["deepep-ll"], ranks=ranks, tokens=8 if ranks > 32 else 128)
    dispatch, combine = traffic(preset).phases
    assert {m.size for m in dispatch.messages} == {7_408}
    assert {m.size for m in combine.messages} == {14_336}
    assert len(dispatch.messages) == len(combine.messages)
    sent = sent_by(dispatch.messages, ranks)
    # Less than every choice by those of a rank's own experts, which are about 1 in `ranks`.
    assert (sent <= preset.bytes_of_choices()[0]).all()
    assert sent.sum() / (ranks * preset.bytes_of_choices()[0]) == pytest.approx(1 - 1 / ranks, abs=0.02)
    assert (sent_by(combine.messages, ranks) * 7_408 == received_by(dispatch.messages, ranks) * 14_336).all()


def test_e1_a_forward_pass_of_deepseek_v3_is_116_alltoalls() -> None:
    for name in ("deepep-ll", "dsv3-prefill", "dsv3-decode"):
        assert PRESETS[name].layers == 58
        assert PRESETS[name].alltoalls == 116
    small = replace(PRESETS["deepep-ll"], tokens=1)
    assert len(traffic(small, layers=small.layers).phases) == 116


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("deepep-ll", (8, 128, 7168, 256, 8, 58)),
        ("dsv3-prefill", (32, 16384, 7168, 256, 8, 58)),
        ("dsv3-decode", (144, 128, 7168, 256, 8, 58)),
        ("mixtral-8x22b", (8, 256, 6144, 8, 2, 56)),
        ("dbrx", (16, 256, 6144, 16, 4, 40)),
        ("scaled-moe", (32, 256, 8192, 32, 4, 48)),
    ],
)
def test_a_preset_has_the_sizes_of_its_model(name: str, figures: tuple[int, ...]) -> None:
    preset = PRESETS[name]
    found = (preset.ranks, preset.tokens, preset.hidden, preset.experts, preset.top_k, preset.layers)
    assert found == figures


@pytest.mark.parametrize("name", ["mixtral-8x22b", "dbrx", "scaled-moe", "dsv3-prefill"])
def test_a_throughput_preset_sends_a_token_once_to_a_rank(name: str) -> None:
    preset = replace(PRESETS[name], ranks=8, tokens=40)
    dispatch, combine = traffic(preset, per_node=1).phases
    vectors = preset.vectors()
    out = {(m.src, m.dst): m.size for m in dispatch.messages}
    assert len(out) == len(dispatch.messages)
    assert all(size % vectors.dispatch == 0 and size <= 40 * vectors.dispatch for size in out.values())
    back = {(m.dst, m.src): m.size for m in combine.messages}
    assert back == {pair: size // vectors.dispatch * vectors.combine for pair, size in out.items()}


def test_fp8_carries_scales_and_bf16_two_bytes_an_element() -> None:
    assert PRESETS["dsv3-prefill"].vectors()[:2] == (7168 + 224, 14_336)
    assert PRESETS["dbrx"].vectors()[:2] == (12_288, 12_288)


def ranks_of_tokens(preset: Preset, per_node: int) -> int:
    """Most nodes that a rank sends one single token to."""
    (dispatch, _) = traffic(replace(preset, tokens=1), per_node=per_node).phases
    nodes: dict[int, set[int]] = {}
    for m in dispatch.messages:
        nodes.setdefault(m.src, set()).add(m.dst // per_node)
    return max(map(len, nodes.values()))


def test_a_token_of_prefill_reaches_four_nodes_at_most() -> None:
    preset = replace(PRESETS["dsv3-prefill"], ranks=64)
    assert ranks_of_tokens(preset, 8) <= 4
    assert ranks_of_tokens(replace(preset, max_nodes=0), 8) > 4
    assert ranks_of_tokens(replace(preset, max_nodes=2), 4) <= 2


@pytest.mark.parametrize(("sigma", "wanted"), LEVELS)
def test_e8_the_gini_of_a_lognormal(sigma: float, wanted: float) -> None:
    assert skew.gini_of(sigma) == pytest.approx(wanted, abs=0.0007)
    assert skew.sigma_of(skew.gini_of(sigma)) == pytest.approx(sigma)
    drawn = np.exp(sigma * np.random.Generator(np.random.Philox(key=1)).standard_normal(200_000))
    assert gini(drawn) == pytest.approx(wanted, abs=0.003)


@pytest.mark.parametrize(("experts", "top_k"), sorted({(p.experts, p.top_k) for p in PRESETS.values()}))
@pytest.mark.parametrize("wanted", [level for _, level in LEVELS])
def test_e8_generated_choices_have_the_gini_asked_for(experts: int, top_k: int, wanted: float) -> None:
    rng = np.random.Generator(np.random.Philox(key=7))
    shares = skew.shares(experts, wanted, top_k, rng)
    assert gini(shares) == pytest.approx(wanted, abs=1e-6)
    chosen = choose(weights_of(shares, top_k), 10_000, top_k, rng)
    assert gini(np.bincount(chosen.ravel(), minlength=experts)) == pytest.approx(wanted, abs=0.015)


def popularities(mode: str) -> list[list[float]]:
    rng = np.random.Generator(np.random.Philox(key=3))
    return [shares.tolist() for shares in skew.popularities(mode, 3, 64, 0.38, 8, rng)]


def test_popularity_is_fixed_or_moved_or_redrawn() -> None:
    first, second, third = popularities("fixed")
    assert first == second == third
    first, second, third = popularities("moved")
    assert first != second != third
    assert sorted(first) == sorted(second) == sorted(third)
    first, second, third = popularities("redrawn")
    assert sorted(first) != sorted(second) != sorted(third)


def hottest(workload: Workload) -> list[int]:
    dispatches: tuple[Phase, ...] = workload.phases[::2]
    return [int(received_by(phase.messages, workload.ranks).argmax()) for phase in dispatches]


def test_the_hot_rank_moves_only_where_popularity_does() -> None:
    preset = replace(PRESETS["scaled-moe"], ranks=32, tokens=200, hidden=128)
    fixed = traffic(preset, 6, Skew(0.38, "fixed"))
    moved = traffic(preset, 6, Skew(0.38, "moved"))
    assert len(set(hottest(fixed))) == 1
    assert len(set(hottest(moved))) >= 3


def test_copies_of_popular_experts_even_out_what_ranks_receive() -> None:
    preset = replace(PRESETS["dsv3-decode"], ranks=32, tokens=64)
    how = Skew(0.38, "fixed")
    with_copies = received_by(traffic(preset, how=how).phases[0].messages, 32)
    without = received_by(traffic(replace(preset, redundant=0), how=how).phases[0].messages, 32)
    assert with_copies.sum() == pytest.approx(without.sum(), rel=0.05)
    assert with_copies.max() / with_copies.mean() < 1.2 < 1.4 < without.max() / without.mean()


def test_decode_at_its_own_size_has_two_experts_on_each_of_144_ranks() -> None:
    workload = traffic(replace(PRESETS["dsv3-decode"], tokens=4))
    assert workload.ranks == 144
    assert (received_by(workload.phases[0].messages, 144) > 0).all()


def test_the_note_says_what_was_asked_for_and_what_leaves_the_ranks() -> None:
    workload = traffic(replace(PRESETS["deepep-ll"], tokens=16), how=Skew(0.24, "moved"))
    (note,) = workload.notes
    dispatch, combine = workload.phases
    assert "(asked 0.240)" in note
    assert f"every choice is {8 * 16 * 8 * 7408} + {8 * 16 * 8 * 14336} B" in note
    assert f"of which {dispatch.logical_bytes} + {combine.logical_bytes} B go to other ranks" in note


def test_the_same_seed_gives_the_same_traffic_and_another_seed_does_not() -> None:
    preset = replace(PRESETS["dbrx"], ranks=8, tokens=32)
    first, again, other = (traffic(preset, 2, Skew(0.24, "redrawn"), seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.phases != other.phases


@pytest.mark.parametrize(
    ("preset", "changes", "how", "per_node", "message"),
    [
        ("dbrx", {"ranks": 7}, EVEN, 1, "ranks = 7: there are 16 experts, allowed are its divisors 2, 4, 8, 16"),
        ("deepep-ll", {"hidden": 100}, EVEN, 8, "hidden = 100: allowed are multiples of 128"),
        ("dsv3-prefill", {}, EVEN, 3, "ranks_per_node = 3: allowed are the divisors of the 32 ranks"),
        ("dsv3-prefill", {"redundant": 32}, EVEN, 8, "redundant = 32: allowed is 0 where max_nodes"),
        ("dbrx", {"max_nodes": 1}, EVEN, 1, "max_nodes = 1: so many nodes have less than 4 experts"),
        ("dbrx", {"redundant": 32}, EVEN, 1, "redundant = 32: allowed are 0 to the 16 experts"),
        ("dbrx", {}, Skew(0.9, "fixed"), 1, "gini = 0.9: too high for 16 experts of which a token chooses 4"),
    ],
)
def test_what_does_not_go_together_is_refused(
    preset: str, changes: dict[str, int], how: Skew, per_node: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        presets.check(replace(PRESETS[preset], **changes), how, per_node)  # type: ignore[arg-type]

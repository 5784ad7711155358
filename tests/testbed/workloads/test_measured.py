"""The measured routing table, and traffic made from it."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.workloads.base import Workload, received_by, sent_by
from testbed.workloads.measured import popularity, table
from testbed.workloads.moe import fp8_and_bf16, measured
from testbed.workloads.routing import choose, fit, gini
from transport.errors import ConfigError

LAYERS = (0, 7, 15)


def moe(domain: str, tokens: int, hidden: int, seed: int, ranks: int = 8) -> Workload:
    layers = {layer: popularity("olmoe", domain, layer) for layer in LAYERS}
    return measured(ranks, layers, tokens, fp8_and_bf16(hidden, "write_imm"), seed)


def test_a_web_text_domain_of_olmoe_has_every_choice_of_208896_tokens() -> None:
    for domain in ("arxiv", "book", "c4", "github", "wikipedia"):
        for layer in LAYERS:
            assert popularity("olmoe", domain, layer).counts.sum() == 208_896 * 8
            assert popularity("mistral", domain, layer).counts.sum() == 208_896 * 2


@pytest.mark.parametrize(
    ("model", "domain", "wanted"),
    [
        ("olmoe", "c4", (0.1371, 0.2119, 0.2878)),
        ("olmoe", "github", (0.2909, 0.5835, 0.5894)),
        ("mistral", "c4", (0.0530, 0.0227, 0.0726)),
        ("olmoe", "wikipedia", (None, None, 0.6333)),
    ],
)
def test_gini_of_the_measured_counts(model: str, domain: str, wanted: tuple[float | None, ...]) -> None:
    for layer, value in zip(LAYERS, wanted, strict=True):
        if value is not None:
            assert gini(popularity(model, domain, layer).counts) == pytest.approx(value, abs=5e-5)


@pytest.mark.parametrize(("domain", "hottest"), [("github", [21, 17, 30]), ("c4", [41, 1, 7])])
def test_the_hottest_expert_moves_with_the_layer_and_differs_between_domains(domain: str, hottest: list[int]) -> None:
    assert [int(popularity("olmoe", domain, layer).counts.argmax()) for layer in LAYERS] == hottest


def test_the_instruction_domain_has_fewer_choices_in_every_model() -> None:
    for model in ("olmoe", "olmoe-sft", "olmoe-dpo"):
        assert {int(popularity(model, "tulu", layer).counts.sum()) for layer in LAYERS} == {1_641_944}


def test_finer_blocks_of_experts_are_more_skewed() -> None:
    of_sixteen = popularity("olmoe", "github", 7).counts.reshape(16, 4).sum(axis=1)
    assert of_sixteen.max() / of_sixteen.mean() == pytest.approx(2.562, abs=5e-4)


@pytest.mark.parametrize(
    ("domain", "hot", "ratios"),
    [("github", (2, 0, 4), (1.273, 2.141, 1.281)), ("wikipedia", (1, 3, 7), (1.286, 1.852, 1.832))],
)
def test_the_hot_rank_of_eight_moves_with_the_layer(
    domain: str, hot: tuple[int, ...], ratios: tuple[float, ...]
) -> None:
    for layer, rank, ratio in zip(LAYERS, hot, ratios, strict=True):
        per_rank = popularity("olmoe", domain, layer).counts.reshape(8, 8).sum(axis=1)
        assert per_rank.argmax() == rank
        assert per_rank.max() / per_rank.mean() == pytest.approx(ratio, abs=5e-4)


@pytest.mark.parametrize("domain", ["github", "wikipedia"])
@pytest.mark.parametrize("layer", LAYERS)
def test_choices_are_as_skewed_as_what_was_measured(domain: str, layer: int) -> None:
    top_k, counts = popularity("olmoe", domain, layer)
    rng = np.random.Generator(np.random.Philox(key=5))
    chosen = choose(fit(counts, top_k), 20_000, top_k, rng)
    assert gini(np.bincount(chosen.ravel(), minlength=64)) == pytest.approx(gini(counts), abs=0.015)


def test_dispatch_and_combine_carry_the_same_tokens_back_at_two_bytes() -> None:
    workload = moe("github", 64, 128, seed=3)
    assert [phase.name for phase in workload.phases][:2] == ["layer 0 dispatch", "layer 0 combine"]
    for dispatch, combine in zip(workload.phases[::2], workload.phases[1::2], strict=True):
        out = {(m.src, m.dst): m.size for m in dispatch.messages}
        back = {(m.dst, m.src): m.size for m in combine.messages}
        assert back == {pair: 2 * size for pair, size in out.items()}
        assert all(src != dst for src, dst in out)
        assert all(size % 128 == 0 and size <= 64 * 128 for size in out.values())


def test_the_hottest_receiver_of_the_main_job_moves() -> None:
    workload = moe("wikipedia", 512, 2048, seed=1)
    hot = [int(received_by(phase.messages, 8).argmax()) for phase in workload.phases[::2]]
    assert hot == [1, 3, 7]
    assert 250e6 < sum(phase.logical_bytes for phase in workload.phases) < 400e6
    for dispatch, combine in zip(workload.phases[::2], workload.phases[1::2], strict=True):
        assert (sent_by(combine.messages, 8) == 2 * received_by(dispatch.messages, 8)).all()


def test_the_small_job_fits_into_four_megabytes() -> None:
    workload = moe("wikipedia", 64, 128, seed=1)
    assert sum(phase.logical_bytes for phase in workload.phases) <= 4_000_000


def test_the_same_seed_gives_the_same_traffic_and_another_seed_does_not() -> None:
    first, again, other = (moe("c4", 64, 16, seed, ranks=4) for seed in (1, 1, 2))
    assert first == again
    assert first.phases != other.phases


@pytest.mark.parametrize(
    ("model", "domain", "layer", "names"),
    [("gpt", "c4", 0, "olmoe"), ("olmoe", "news", 0, "wikipedia"), ("olmoe", "c4", 3, "0, 7, 15")],
)
def test_what_was_not_measured_is_refused_with_what_was(model: str, domain: str, layer: int, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        popularity(model, domain, layer)


def test_ranks_that_do_not_divide_the_experts_are_refused() -> None:
    with pytest.raises(ConfigError, match="ranks = 7"):
        moe("c4", 8, 8, seed=1, ranks=7)


def test_every_layer_of_the_table_has_all_its_experts() -> None:
    assert {len(popular.counts) for (model, _, _), popular in table().items() if model != "mistral"} == {64}
    assert {len(popular.counts) for (model, _, _), popular in table().items() if model == "mistral"} == {8}

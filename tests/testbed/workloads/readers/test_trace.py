"""Routing traces: both kinds of rows, warm-up passes, absent experts, mistakes, and the traffic made of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.workloads.moe import fp8_and_bf16
from testbed.workloads.readers.trace import Trace, parse
from testbed.workloads.replay import from_trace
from testbed.workloads.routing import gini
from transport.errors import ConfigError

VECTORS = fp8_and_bf16(100, "write")


def batch(step: int, chosen: Any, layer: int = 0, rank: int = 0, **more: Any) -> dict[str, Any]:
    row = {"step": step, "layer": layer, "rank": rank, "num_tokens": len(chosen), "topk": len(chosen[0])}
    return {**row, "top_indices": chosen, **more}


def lines(*rows: Any) -> str:
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)


def read(*rows: Any, experts: int | None = None) -> Trace:
    return parse(lines(*rows), "t", experts)


def served(warm: int, warm_tokens: int, tokens: int, experts: int = 60, top_k: int = 4) -> Iterable[dict[str, Any]]:
    """A server's file of token rows: `warm` passes of equal tokens, then a real one with token_idx from 0 again."""
    yield {"type": "meta", "top_k": top_k}
    for _ in range(warm):
        for index in range(warm_tokens):
            yield {"type": "route", "token_idx": index, "layer": 0, "topk_ids": [7, 3, 21, 50], "topk_weights": [0.4]}
    rng = np.random.Generator(np.random.Philox(key=2))
    for index in range(tokens):
        chosen = rng.choice(experts, top_k, replace=False).tolist()
        yield {"type": "route", "token_idx": index, "layer": 0, "topk_ids": chosen}


def test_a_batch_is_read_in_both_forms_and_the_first_row_may_be_about_the_file() -> None:
    nested = read({"model": "m", "num_experts": 8}, batch(0, [[1, 2], [3, 0]]), batch(1, [[4, 5]], layer=2, rank=1))
    assert nested.meta["model"] == "m"
    assert (nested.experts, nested.stated, nested.seen, nested.tokens) == (8, True, 6, 3)
    assert [(b.step, b.layer, b.rank, b.chosen.tolist()) for b in nested.batches] == [
        (0, 0, 0, [[1, 2], [3, 0]]),
        (1, 2, 1, [[4, 5]]),
    ]
    flat = read(batch(0, [[1, 2], [3, 0]]) | {"top_indices": [1, 2, 3, 0]})
    assert flat.batches[0].chosen.tolist() == [[1, 2], [3, 0]]
    assert flat.meta == {}


def test_token_numbers_that_begin_again_begin_a_pass() -> None:
    rows = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 0), (0, 1), (0, 0), (0, 1), (1, 0)]
    trace = read(*({"token_idx": token, "layer": layer, "topk_ids": [token, 5]} for token, layer in rows))
    assert [(b.step, b.layer, len(b.chosen)) for b in trace.batches] == [
        (0, 0, 2), (0, 1, 2), (1, 0, 1), (1, 1, 1), (2, 0, 2), (2, 1, 1),
    ]  # fmt: skip


def test_warm_up_passes_are_reported_and_change_the_conclusion() -> None:
    trace = read(*served(2, 435, 130))
    assert trace.warm_up == (0, 1)
    assert trace.warm_up_note() == (
        "warm-up: 2 passes (the first is step 0) with 87 % of the tokens, in which every token has the same experts"
    )
    naive = trace.counts()
    assert naive.max() / naive.mean() > 10
    rest = trace.without_warm_up()
    assert (rest.warm_up, rest.warm_up_note(), rest.tokens) == ((), None, 130)
    assert rest.counts().max() / rest.counts().mean() < 2.5
    assert gini(rest.counts()) < 0.3 < gini(naive)


def test_a_pass_of_equal_tokens_in_any_order_of_their_experts_is_a_warm_up() -> None:
    trace = read(batch(0, [[1, 2], [2, 1]]), batch(0, [[3, 4], [3, 4]], layer=1), batch(1, [[1, 2], [1, 3]]))
    assert trace.warm_up == (0,)


def test_a_pass_of_single_tokens_or_with_one_real_layer_is_none() -> None:
    assert read(batch(0, [[1, 2]]), batch(1, [[1, 2]])).warm_up == ()
    assert read(batch(0, [[1, 2], [1, 2]]), batch(0, [[1, 2], [1, 3]], layer=1)).warm_up == ()


def test_an_absent_expert_is_not_dead() -> None:
    rows = (batch(0, [[0, 5], [2, 1]]),)
    assert read({"num_experts": 8}, *rows).experts == 8
    assert read(*rows, experts=16).experts == 16
    assert read(*rows, experts=16).experts_note() == "experts: 4 of 16 occur; the others are absent, not dead"
    guessed = read(*rows)
    assert (guessed.experts, guessed.stated) == (6, False)
    assert "4 of 6 occur" in (guessed.experts_note() or "")
    assert "does not say how many" in (read(batch(0, [[0, 1]])).experts_note() or "")
    assert read(batch(0, [[0, 1]]), experts=2).experts_note() is None


def test_a_token_goes_to_the_ranks_of_its_experts_and_comes_back() -> None:
    trace = read(batch(3, [[0, 1], [2, 5]], rank=0), batch(3, [[6, 7]], rank=1), experts=8)
    workload = from_trace(trace, 2, 5, (), VECTORS)
    assert [phase.name for phase in workload.phases] == ["step 3 layer 0 dispatch", "step 3 layer 0 combine"]
    # Rank 0: its second token needs expert 5 on rank 1. Rank 1: both experts are at home.
    assert [[(m.src, m.dst, m.size) for m in phase.messages] for phase in workload.phases] == [
        [(0, 1, 100)],
        [(1, 0, 200)],
    ]
    assert workload.notes == ("step 3 layer 0: 3 tokens, Gini of expert choices 0.250, max/mean 1.33",)


def test_tokens_of_another_number_of_ranks_are_dealt_out_in_order() -> None:
    trace = read(batch(0, [[3], [3], [0], [0]]), experts=4)
    (dispatch, _) = from_trace(trace, 2, 1, (), VECTORS).phases
    assert [(m.src, m.dst, m.size) for m in dispatch.messages] == [(0, 1, 200), (1, 0, 200)]


def test_passes_and_layers_can_be_picked() -> None:
    rows = [batch(step, [[0], [1]], layer=layer) for step in range(3) for layer in (0, 4)]
    trace = read(*rows)
    assert len(from_trace(trace, 2, 2, (), VECTORS).phases) == 8
    names = [phase.name for phase in from_trace(trace, 2, 2, (4,), VECTORS).phases]
    assert names == [f"step {step} layer 4 {half}" for step in (0, 1) for half in ("dispatch", "combine")]
    with pytest.raises(ConfigError, match=r"layers = \[1\]: allowed are 0, 4"):
        from_trace(trace, 2, 2, (1,), VECTORS)


GOOD = batch(0, [[1, 2]])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((GOOD, "{"), "t, line 2: not JSON: .*'{'"),
        ((GOOD, "[1]"), r"t, line 2: '\[1\]': a row must be a JSON object"),
        ((GOOD, ""), None),
        ((GOOD, {"step": 1}), "t, line 2: keys step: neither top_indices nor topk_ids"),
        ((batch(0, [[1, 2]], rank="a"),), "t, line 1: rank = 'a': allowed are whole numbers from 0"),
        ((batch(0, [[1, 2]], layer=True),), "t, line 1: layer = True: allowed"),
        ((batch(-1, [[1, 2]]),), "t, line 1: step = -1"),
        ((batch(0, [[1, 2]], topk=0),), "t, line 1: topk = 0: allowed are whole numbers from 1 to 65536"),
        (({"num_experts": 1 << 40}, GOOD), "t, line 1: num_experts = 1099511627776: allowed are whole numbers from 1"),
        ((batch(0, [[1, 2]], num_tokens=2),), "t, line 1: top_indices is for 1 tokens, num_tokens = 2"),
        ((batch(0, [[1, 2]], topk=3),), r"t, line 1: top_indices = \[1, 2\]: a list of 3 experts"),
        ((batch(0, [[1, 2]], top_indices=[1, 2, 3]),), "t, line 1: top_indices has 3 entries, num_tokens x topk is 2"),
        ((batch(0, [[1, 2]], top_indices="12"),), "t, line 1: top_indices = '12': it must be a list"),
        ((batch(0, [[1, -2]]),), "t, line 1: top_indices: expert -2: allowed are 0 to 65535"),
        ((batch(0, [[1, 2.0]]),), "t, line 1: top_indices: expert 2.0"),
        ((batch(0, [[1, 1]]),), r"t, line 1: top_indices = \[1, 1\]: a token cannot choose an expert twice"),
        ((GOOD, GOOD), "t, line 2: step 0, layer 0, rank 0 were in line 1 already"),
        ((GOOD, batch(1, [[1]])), "t, line 2: 1 experts for a token, in line 1 layer 0 had 2"),
        (({"num_experts": 4}, GOOD, batch(1, [[0, 4]])), "t, line 3: expert 4: allowed are 0 to 3"),
        (({"num_experts": "4"}, GOOD), "t, line 1: num_experts = '4'"),
        (({"token_idx": 0, "layer": 0, "topk_ids": []},), r"t, line 1: topk_ids = \[\]: a list of at least one expert"),
        (({"layer": 0, "topk_ids": [1]},), "t, line 1: key token_idx is missing"),
        ((GOOD, {"token_idx": 0, "layer": 0, "topk_ids": [1, 2]}), "t: it has rows with top_indices and rows with top"),
        (({"meta": 1},), "t: no row has routed tokens"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line_and_value(rows: tuple[Any, ...], message: str | None) -> None:
    if message is None:
        assert read(*rows).tokens == 1
        return
    with pytest.raises(ConfigError, match=message):
        read(*rows)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
KEYS = ("step", "layer", "rank", "num_tokens", "topk", "top_indices", "token_idx", "topk_ids", "num_experts")


@given(st.lists(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=7) | st.text(max_size=20), max_size=4))
def test_any_rows_are_read_or_refused_by_name(rows: list[Any]) -> None:
    for extra in ([], [GOOD]):
        try:
            told = None if read(*extra, *rows).batches else ""
        except ConfigError as error:
            told = str(error)
        assert told is None or told.startswith("t")

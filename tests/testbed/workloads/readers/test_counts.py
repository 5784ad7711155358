"""Expert-count tables: the real ones, both forms, and mistakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.workloads.readers.counts import Key, parse
from testbed.workloads.readers.files import read_text
from testbed.workloads.routing import gini
from transport.errors import ConfigError

EPLB = Path(__file__).resolve().parents[3] / "data" / "moe" / "eplb_readme_2x12.csv"
#: The placement of 12 experts on 16 places of 8 GPUs that is published beside these loads.
PLACES = (
    (5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1),
    (7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1),
)


@pytest.mark.parametrize(
    ("layer", "total", "skew", "ratio", "placed"),
    [(0, 1033, 0.3297, 2.126, 1.2081), (1, 1156, 0.3867, 2.045, 1.2422)],
)
def test_the_loads_of_eplb_and_what_its_placement_makes_of_them(
    layer: int, total: int, skew: float, ratio: float, placed: float
) -> None:
    table = parse(read_text(EPLB), "eplb")
    assert [key.layer for key in table] == [0, 1]
    top_k, counts = table[Key("", "", layer)]
    assert (top_k, len(counts), counts.sum()) == (0, 12, total)
    assert gini(counts) == pytest.approx(skew, abs=5e-5)
    assert counts.max() / counts.mean() == pytest.approx(ratio, abs=5e-4)
    places = np.array(PLACES[layer])
    load = (counts / np.bincount(places))[places].reshape(8, 2).sum(axis=1)
    assert load.max() / load.mean() == pytest.approx(placed, abs=5e-5)


def test_columns_may_come_in_any_order_and_experts_may_be_missing() -> None:
    table = parse("count,expert,layer\n7,3,1\n2,0,1\n\n4,1,0\n", "t")
    assert {key: value.counts.tolist() for key, value in table.items()} == {
        Key("", "", 1): [2, 0, 0, 7],
        Key("", "", 0): [0, 4, 0, 0],
    }


def test_models_domains_and_top_k_are_kept_apart() -> None:
    table = parse("model,domain,top_k,layer,expert,count\na,x,2,0,0,5\na,y,2,0,0,6\nb,x,1,0,0,7\n", "t")
    assert [(key, value.top_k, value.counts.tolist()) for key, value in table.items()] == [
        (Key("a", "x", 0), 2, [5]),
        (Key("a", "y", 0), 2, [6]),
        (Key("b", "x", 0), 1, [7]),
    ]


@given(st.lists(st.lists(st.integers(1, 10**9), min_size=3, max_size=3), min_size=1, max_size=5))
def test_both_forms_say_the_same(rows: list[list[int]]) -> None:
    plain = "\n".join(",".join(map(str, row)) for row in rows)
    labelled = "layer,expert,count\n" + "\n".join(
        f"{layer},{expert},{count}" for layer, row in enumerate(rows) for expert, count in enumerate(row)
    )
    first, second = parse(plain, "p"), parse(labelled, "l")
    assert {k: v.counts.tolist() for k, v in first.items()} == {k: v.counts.tolist() for k, v in second.items()}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n3\n", "t, line 2: 1 counts, the first row has 2"),
        ("1,2\n3,-4\n", "t, line 2: count = '-4': allowed are whole numbers"),
        ("1,2\n3,x\n", "t, line 2: count = 'x'"),
        ("1,2\n0,0\n", "t: layer 1: all counts are 0"),
        ("layer,expert,hits\n0,0,1\n", "t, line 1: column 'hits': allowed are, once each, model, domain"),
        ("layer,expert\n0,0\n", "t, line 1: column count is missing; there are layer, expert"),
        ("layer,expert,count\n", "t: it has a header and no rows"),
        ("layer,expert,count\n0,0,1\n0,1\n", "t, line 3: 2 values for 3 columns"),
        ("layer,expert,count\n0,0,1\n0,0,2\n", "t, line 3: expert = 0 of layer 0 is there twice"),
        (
            "layer,expert,count\n0,99999999,1\n",
            "t, line 2: expert = '99999999': allowed are whole numbers from 0 to 65536",
        ),
        ("layer,expert,count\n0,0,1e3\n", "t, line 2: count = '1e3'"),
        ("top_k,layer,expert,count\n2,0,0,1\n3,0,1,1\n", "t, line 3: top_k = 3: layer 0 had 2 before"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_value(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(text, "t")


@given(st.text(alphabet="layerxptcoun,0123456789-.\n \t\x00", max_size=80))
def test_any_text_is_read_or_refused_by_name(text: str) -> None:
    try:
        told = None if parse(text, "t") else ""
    except ConfigError as error:
        told = str(error)
    assert told is None or told.startswith("t")


def test_experts_that_are_absent_at_the_end_of_a_layer_are_not_cut_off() -> None:
    table = parse("layer,expert,count\n0,0,5\n0,1,5\n1,0,1\n1,3,9\n", "two.csv")
    assert [popular.counts.tolist() for popular in table.values()] == [[5, 5, 0, 0], [1, 0, 0, 9]]

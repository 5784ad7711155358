"""Byte matrices and square count tables: the real files, suffixes, and mistakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.workloads.base import Bytes, received_by
from testbed.workloads.measured import popularity
from testbed.workloads.readers.files import read_text
from testbed.workloads.readers.matrix import parse
from testbed.workloads.replay import folded, from_matrix
from testbed.workloads.routing import gini
from transport.errors import ConfigError

DATA = Path(__file__).resolve().parents[3] / "data"


def read(name: str) -> Bytes:
    return parse(read_text(DATA / name), name)


def test_ucc_of_8_ranks_is_nearly_even() -> None:
    matrix = read("ucc/transfer_matrix_8")
    to = matrix.sum(axis=0)
    assert matrix.shape == (8, 8)
    assert matrix.sum() == 1_543_173
    assert gini(to) == pytest.approx(0.0386, abs=5e-5)
    assert (to.argmax(), to.max() / to.mean()) == (3, pytest.approx(1.091, abs=5e-4))
    assert matrix.trace() == 0


def test_ucc_of_16_ranks_is_an_incast_with_traffic_to_itself() -> None:
    matrix = read("ucc/transfer_matrix_16")
    to = matrix.sum(axis=0)
    assert matrix.shape == (16, 16)
    assert matrix.sum() == 1_697_680_000
    assert gini(to) == pytest.approx(0.2412, abs=5e-5)
    assert gini(matrix.sum(axis=1)) == pytest.approx(0.0445, abs=5e-5)
    assert (to.argmax(), to.max() / to.mean()) == (6, pytest.approx(1.764, abs=5e-4))
    assert matrix.diagonal().tolist() == [0] * 7 + [3_840_000] + [0] * 8
    # Each row but 7 and 15 has a zero eight columns away: two ranks of a group of eight are the same place.
    assert all(matrix[i, (i + 8) % 16] == 0 for i in range(16) if i not in (7, 15))


def test_self_traffic_is_not_sent_and_is_reported() -> None:
    workload = from_matrix(read("ucc/transfer_matrix_16"), 16, 1.0, "write")
    (phase,) = workload.phases
    assert phase.logical_bytes == 1_697_680_000 - 3_840_000
    assert all(m.src != m.dst and m.size > 0 for m in phase.messages)
    assert received_by(phase.messages, 16).argmax() == 6
    assert "3840000 B of self traffic are not sent" in workload.notes[0]


@pytest.mark.parametrize(
    ("name", "total", "rows", "columns", "cells", "most", "where", "layers"),
    [
        ("mistral_c4", 417_792, 0.0530, 0.0227, 0.1212, 13_606, (0, 6), ("mistral", "c4")),
        ("mistral_github", 417_792, 0.0551, 0.0672, 0.1803, 12_941, (0, 6), ("mistral", "github")),
        ("olmoe_github", 1_671_168, 0.2909, 0.5835, 0.6603, 24_736, (21, 17), ("olmoe", "github")),
    ],
)
def test_choices_of_two_layers_agree_with_the_counts_of_each(
    name: str, total: int, rows: float, columns: float, cells: float, most: int, where: tuple[int, int],
    layers: tuple[str, str],
) -> None:  # fmt: skip
    matrix = read(f"moe/{name}_crosslayer_0.csv")
    assert matrix.sum() == total
    found = [gini(values) for values in (matrix.sum(axis=1), matrix.sum(axis=0), matrix.ravel())]
    assert found == pytest.approx([rows, columns, cells], abs=5e-5)
    assert matrix.max() == most
    assert np.unravel_index(matrix.argmax(), matrix.shape) == where
    assert (matrix.sum(axis=1) == popularity(*layers, 0).counts).all()
    assert (matrix.sum(axis=0) == popularity(*layers, 7).counts).all()


def test_blocks_of_experts_fold_onto_ranks() -> None:
    matrix = read("moe/olmoe_github_crosslayer_0.csv")
    small = folded(matrix, 8)
    assert small.sum() == matrix.sum()
    assert small[2, 0] == matrix[16:24, 0:8].sum()
    assert [small.sum(axis=axis).argmax() for axis in (1, 0)] == [2, 0]


def test_a_unit_turns_counts_into_bytes() -> None:
    workload = from_matrix(np.array([[5, 10], [3, 0]]), 2, 0.5, "write")
    assert [(m.src, m.dst, m.size) for m in workload.phases[0].messages] == [(0, 1, 5), (1, 0, 1)]


@pytest.mark.parametrize(
    ("unit", "ranks", "message"),
    [
        (1e-9, 2, "unit = 1e-09: no rank has anything to send"),
        (1e9, 2, "unit = 1e\\+09: the largest message would have 10000000000 B, allowed are 4294967296"),
        (1.0, 3, "ranks = 3: the matrix has 2 rows, allowed are its divisors"),
    ],
)
def test_a_matrix_that_cannot_be_sent_is_refused(unit: float, ranks: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_matrix(np.array([[5, 10], [3, 0]]), ranks, unit, "write")


def test_suffixes_are_powers_of_ten() -> None:
    assert parse("0 1K\n2.5M 3G\n", "m").tolist() == [[0, 1000], [2_500_000, 3_000_000_000]]


def squares(side: int) -> st.SearchStrategy[list[list[int]]]:
    row = st.lists(st.integers(0, 1 << 53), min_size=side, max_size=side)
    return st.lists(row, min_size=side, max_size=side)


@given(st.integers(2, 9).flatmap(squares), st.sampled_from([" ", ",", "\t", ", "]))
def test_what_was_written_is_read(rows: list[list[int]], separator: str) -> None:
    text = "\n".join(separator.join(map(str, row)) + " " for row in rows)
    assert parse(text, "m").tolist() == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1\n1 0 2\n", "m, line 2: 3 entries in a file of 2 rows: the matrix must be square"),
        ("0 1 2\n\n1 0 2\n", "m, line 1: 3 entries in a file of 2 rows"),
        ("0 1\n1 x\n", "m, line 2: 'x': allowed are whole numbers"),
        ("0 -1\n1 0\n", "m, line 1: '-1': allowed"),
        ("0 1k\n1 0\n", "m, line 1: '1k': allowed"),
        ("0 0.5\n1 0\n", "m, line 1: '0.5': allowed"),
        ("0 nan\n1 0\n", "m, line 1: 'nan': allowed"),
        ("0 9999999999G\n1 0\n", "m, line 1: '9999999999G': allowed"),
        ("5\n", "m: 1 rows: a matrix for at least 2 ranks"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_value(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(text, "m")


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_by_name(text: str) -> None:
    try:
        told = None if parse(text, "m").ndim == 2 else ""
    except ConfigError as error:
        told = str(error)
    assert told is None or told.startswith("m")

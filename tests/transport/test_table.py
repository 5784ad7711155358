"""The table of random numbers: QPNs and remote keys."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from transport.table import Table


@given(
    seed=st.integers(0, 2**32),
    steps=st.lists(st.tuples(st.sampled_from(["add", "add", "remove", "put"]), st.integers(0, 2**32)), max_size=150),
)
def test_it_is_a_dictionary_whose_keys_it_chooses_itself(seed, steps):
    table = Table(random.Random(seed), 1 << 24)
    model: dict[int, int] = {}
    gone: set[int] = set()
    for step, value in steps:
        if step == "add":
            number = table.add(value)
            assert number not in model
            model[number] = value
            gone.discard(number)
        elif model:
            number = list(model)[value % len(model)]
            if step == "put":
                table.put(number, value)
                model[number] = value
            else:
                table.remove(number)
                del model[number]
                gone.add(number)
        assert len(table) == len(model)
    assert {number: table.get(number) for number in model} == model
    assert sorted(table.values()) == sorted(model.values())
    assert all(table.get(number) is None for number in gone)


@given(seed=st.integers(0, 2**32))
def test_numbers_are_in_range_and_never_the_special_ones(seed):
    table = Table(random.Random(seed), 64)
    numbers = [table.add(None) for _ in range(30)]
    assert len(set(numbers)) == 30
    assert all(2 <= number < 64 for number in numbers)


def test_a_number_that_shares_a_slot_with_a_live_one_finds_nothing():
    table = Table(random.Random(1), 1 << 24)
    number = table.add("here")
    assert table.get(number) == "here"
    for other in range(number & 15, 1 << 12, 16):
        if other != number:
            assert table.get(other) is None


def test_numbers_outside_the_space_find_nothing():
    table = Table(random.Random(1), 1 << 32)
    number = table.add("here")
    for other in (-1, 0, 1, 1 << 32, number + (1 << 32), -number):
        assert table.get(other) is None


def test_removing_a_number_twice_harms_nothing():
    table = Table(random.Random(1), 1 << 24)
    number, other = table.add("a"), table.add("b")
    table.remove(number)
    table.remove(number)
    assert len(table) == 1
    assert table.get(other) == "b"


def test_other_seeds_give_other_numbers():
    assert len({Table(random.Random(seed), 1 << 32).add(None) for seed in range(20)}) == 20

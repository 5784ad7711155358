"""A short run of the packet fuzzer; how to run the long ones is in docs/robustness.md."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.grammar import damage
from tests.fuzz.packets import Fuzzer, Wrong, check_bounds, work
from tests.robustness.attacks import DROPS
from transport.control import RecvAdvert

#: Causes that this fuzzer cannot reach: the address is the peer's, and a CNP has no odd numbers.
UNREACHED = {"dropped_wrong_address", "dropped_cnp"}


def test_ten_thousand_packets_do_no_harm_and_every_cause_is_counted() -> None:
    found = work(seed=11, count=10_000)
    results = ("decoded", "refused")
    assert found["packets"] == sum(size for kind, size in found["kinds"].items() if kind not in results)
    assert set(DROPS) - UNREACHED <= found["counted"].keys()
    assert found["compared"] > 1000
    assert found["victims"] > 2


def test_the_same_seed_gives_the_same_packets() -> None:
    def run(seed: int) -> tuple[object, ...]:
        fuzzer = Fuzzer(seed)
        fuzzer.run(500)
        fuzzer.finish()
        return fuzzer.kinds, fuzzer.counters()

    assert run(5) == run(5) != run(6)


def test_state_beyond_its_bounds_is_noticed() -> None:
    victim = Fuzzer(1).victims.ends[0]
    check_bounds(victim)
    victim.sender.starter.early_adverts.update((i, RecvAdvert(i, ())) for i in range(257))
    with pytest.raises(Wrong, match="early adverts: 257"):
        check_bounds(victim)


def test_a_transfer_that_was_harmed_is_noticed() -> None:
    fuzzer = Fuzzer(1)
    fuzzer.run(100)
    fuzzer.steady.transfers[0].wrong.append("a byte")
    with pytest.raises(Wrong, match="a byte"):
        fuzzer.finish()


def test_damage_changes_what_it_is_given_and_not_the_original() -> None:
    rng = random.Random(1)
    data = bytes(range(100))
    assert sum(damage(rng, data) != data for _ in range(100)) > 90
    assert data == bytes(range(100))
    assert damage(rng, b"") == b""

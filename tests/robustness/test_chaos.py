"""Some rounds of chaos with real processes; what it looks at is in the text of tests/robustness/chaos.py."""

from __future__ import annotations

import random

import pytest

from tests.robustness.chaos import EVENTS, Chaos, Plan, Wrong, run
from tests.robustness.peer import RETRIES, RTO_MIN

pytestmark = pytest.mark.xdist_group("ports")


def test_six_rounds_end_every_request_once_and_every_byte_compares_equal() -> None:
    found = run(6, 7)
    assert all(found[event] for event in EVENTS)
    for what in (
        "compared", "requests and receives ended by errors", "packets replayed and dropped",
        "packets of continued processes dropped", "rounds with failed requests",
    ):  # fmt: skip
        assert found[what] > 0, what
    assert {"dropped_unknown_qpn", "dropped_wrong_tag"} <= found["counted"].keys()


def test_a_port_that_stays_taken_and_a_process_that_is_gone_are_found() -> None:
    """The rounds can fail."""
    chaos = Chaos(1)
    with chaos.running():
        with pytest.raises(Wrong, match="is not free after the process is gone"):
            chaos._check_ports(chaos.addresses[0])
        chaos.sides[1].process.kill()
        with pytest.raises(Wrong, match=f"peer {chaos.addresses[1]} "):
            chaos.sides[1].status()


def test_a_pause_is_drawn_shorter_than_any_peer_waits() -> None:
    rng = random.Random(1)
    pauses = [Plan.draw(rng, "pause") for _ in range(200)]
    assert max(plan.pause for plan in pauses) * 10**12 < RTO_MIN * ((2 << RETRIES) - 1) / 2
    assert not any(plan.closing for plan in pauses)

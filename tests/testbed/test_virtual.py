"""Runs in virtual time: the rows of the scenario table, determinism, and what stops a run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from testbed import runner, scenario
from testbed.errors import RunError
from testbed.job import PathChange
from testbed.progress import Silent
from testbed.report import RunResult
from testbed.runner import left_use
from transport.errors import ConfigError


def run(name: str, *overrides: str) -> RunResult:
    return runner.run(scenario.load(name, overrides), "loopback", Silent())


#: Those made for a whole fabric are run over one, in test_simulated.
FOR_LOOPBACK = [name for name in scenario.known() if scenario.load(name).variants[0].settings.fabric.kind == "star"]


@pytest.mark.parametrize("name", sorted(set(FOR_LOOPBACK) - {"c8-reordering", "moe-alltoall"}))
def test_a_row_meets_its_bounds(name: str) -> None:
    result = run(name)
    missed = [(v.name, e) for v in result.variants for e in v.expect if not e.passed]
    assert missed == []
    assert result.passed


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_plane_dies_and_comes_back(seed: int) -> None:
    result = run("two-ports", f"seed={seed}")
    assert [e for e in result.variants[0].expect if not e.passed] == []
    assert result.passed
    assert result.variants[0].metrics["paths_used"] == 32


def test_one_path_of_the_second_plane_dies_and_its_twin_on_the_first_does_not() -> None:
    hole = "faults.blackhole=[{path = 21, start_us = 1000, end_us = 2000}]"
    result = run("two-ports", "faults.plane=[]", hole)
    metrics = result.variants[0].metrics
    assert [metrics[name] for name in ("evicted_paths", "readmitted_paths", "wrong_order")] == [1, 1, 0]
    assert metrics["bytes_wrong"] == 0


def test_c8_meets_its_bounds() -> None:
    result = run("c8-reordering")
    assert [(v.name, e) for v in result.variants for e in v.expect if not e.passed] == []


@pytest.mark.parametrize("op", ["write", "write_imm", "send", "read"])
@pytest.mark.parametrize("size", ["0", "1", "4097", "40000"])
def test_every_operation_delivers_every_size(op: str, size: str) -> None:
    result = run("pair", f"op={op}", f"size={size}", "messages=5", "depth=2")
    assert result.passed
    assert result.variants[0].metrics["messages"] == 5
    assert result.variants[0].metrics["logical_bytes"] == 5 * int(size)


def test_more_messages_than_the_receive_queue_holds() -> None:
    result = run("pair", "op=send", "size=100", "messages=50", "transport.rq_depth=8")
    assert result.variants[0].metrics["messages"] == 50


def test_messages_at_intervals_are_not_posted_earlier() -> None:
    result = run("pair", "size=1KiB", "messages=4", "interval_us=100")
    posted = result.variants[0].phases[0].messages[:, 3]
    assert np.diff(posted).tolist() == [100_000_000] * 3


def test_the_main_job_in_one_process() -> None:
    result = run("moe-alltoall", "size=small")
    assert result.passed
    phases = result.to_json()["phases"]
    assert [phase["hottest_rank"] for phase in phases[::2]] == [1, 3, 7]
    assert all(phase["duration_us"] >= phase["ideal_us"] for phase in phases)


def test_the_same_seed_gives_the_same_result_and_another_seed_another() -> None:
    settings = ("messages=8", "size=64KiB", "faults.loss=0.02", "faults.jitter_us=10")
    first, again, other = (run("pair", *settings, f"seed={seed}").to_json() for seed in (1, 1, 2))
    assert json.dumps(first) == json.dumps(again)
    assert first["metrics"] != other["metrics"]


def test_bytes_that_differ_from_what_was_sent_fail_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from testbed.rank import Rank

    whole = Rank.verify

    def verify(self: Rank) -> dict[str, str]:
        peer = self._peers.get(0)
        if peer is not None and peer.inbox is not None and peer.inbox.view is not None:
            peer.inbox.view[5] ^= 1
        return whole(self)

    monkeypatch.setattr(Rank, "verify", verify)
    result = run("pair", "messages=2", "size=4KiB")
    assert not result.passed
    assert result.variants[0].metrics["bytes_wrong"] == 1
    assert "rank 0 sent rank 1" in result.variants[0].phases[0].wrong[0]


def test_a_dead_network_ends_in_an_error_that_names_rank_and_phase() -> None:
    dead = "faults.blackhole=[" + ", ".join(f"{{path = {path}}}" for path in range(4)) + "]"
    with pytest.raises(RunError, match=r"rank 0, phase 'pair': RDMA_WRITE ended with RETRY_EXC_ERR: peer 127\.0\.0\.2"):
        run("pair", "messages=1", "transport.paths=4", dead)


def test_a_run_longer_than_its_limit_is_ended_and_says_what_is_missing() -> None:
    with pytest.raises(RunError, match=r"rank 0: 1e-05 s are over.*requests outstanding with rank 1"):
        run("pair", "timeout_s=0.00001")


def test_an_unknown_network_is_refused() -> None:
    with pytest.raises(ConfigError, match="--on air: allowed are udp, dgram, loopback"):
        runner.run(scenario.load("pair"), "air", Silent())


def moves(*states: str) -> list[PathChange]:
    return [PathChange(0, 10 * (number + 1), 3, state) for number, state in enumerate(states)]


@pytest.mark.parametrize(
    ("states", "left"),
    [
        ((), None),
        (("SUSPECT",), None),
        (("SUSPECT", "GOOD"), None),
        (("SUSPECT", "BAD"), 10),
        (("SUSPECT", "GOOD", "SUSPECT", "BAD", "PROBING", "GOOD"), 30),
        (("BAD",), 10),
    ],
)
def test_a_path_left_use_when_the_suspicion_that_was_confirmed_began(states: tuple[str, ...], left: int | None) -> None:
    assert left_use(moves(*states)) == left

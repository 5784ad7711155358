"""Scenarios over the simulated fabric: real bytes through the real core, the same to the bit for one seed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import runner, scenario
from testbed.progress import Silent
from testbed.report import RunResult
from transport.errors import ConfigError


def run(name: str, *overrides: str) -> RunResult:
    return runner.run(scenario.load(name, overrides), "sim", Silent())


def figures(result: RunResult, variant: int = 0) -> dict[str, float]:
    return {name: value for name, value in result.variants[variant].metrics.items() if value is not None}


ROOT = Path(__file__).resolve().parent.parent.parent

#: (name, overrides): something of every kind of workload and fabric, small.
ANY = [
    ("incast", ["ranks=5", "size=65536"]),
    ("permutation", ["ranks=8", "size=65536", "messages=2", "fabric.kind=leaf_spine", "fabric.hosts_per_leaf=4"]),
    ("alltoall", ["ranks=4", "size=20000", "messages=1", "fabric.kind=fat_tree", "fabric.radix=4"]),
    ("one-to-n", ["ranks=4", "size=65536", "messages=2", "op=read", "fabric.kind=dumbbell"]),
    ("pair", ["size=100000", "messages=3", "op=send", "fabric.kind=rail_optimised"]),
    ("m2n", ["tokens=8", "fabric.switch=spray", "fabric.kind=leaf_spine"]),
    ("moe-alltoall", ["size=small", "fabric.switch=adaptive", "fabric.kind=leaf_spine", "fabric.hosts_per_leaf=2"]),
    ("allreduce-ring", ["ranks=4", "size=65536", "fabric.pfc_xoff=100000"]),
]


@pytest.mark.parametrize(("name", "overrides"), ANY, ids=[name for name, _ in ANY])
def test_any_workload_runs_over_any_fabric_and_every_byte_is_right(name: str, overrides: list[str]) -> None:
    result = run(name, *overrides)
    assert result.passed
    assert figures(result)["bytes_wrong"] == 0
    assert figures(result)["packet_hops"] >= 2 * figures(result)["packets"] - figures(result)["fabric_trimmed"]


@pytest.mark.parametrize("name", ["two-ports", "c2-multipath-idle", "c6-dead-path", "c8-reordering"])
def test_what_holds_over_loopback_holds_over_a_fabric(name: str) -> None:
    assert run(name).passed


def digest(result: RunResult) -> str:
    told = {variant.name: variant.metrics for variant in result.variants}
    rows = [record.messages.tolist() for variant in result.variants for record in variant.phases]
    return hashlib.blake2b(json.dumps([told, rows], sort_keys=True).encode(), digest_size=8).hexdigest()


CONGESTED = ("incast", ["ranks=7", "size=150000", "fabric.queue=40000", "fabric.kind=leaf_spine",
                        "fabric.hosts_per_leaf=2", "faults.loss=0.001", "fabric.cut_through=false"])  # fmt: skip


def test_one_seed_gives_one_result_and_another_seed_another() -> None:
    name, overrides = CONGESTED
    first = digest(run(name, *overrides))
    assert first == digest(run(name, *overrides))
    assert first != digest(run(name, *overrides, "seed=2"))


@pytest.mark.parametrize("hash_seed", ["0", "1", "4711"])
def test_the_hash_seed_and_the_build_change_nothing(hash_seed: str) -> None:
    """The digest was made interpreted and is the same compiled. A new one is printed where a change is meant."""
    code = "from tests.testbed.test_simulated import *; name, o = CONGESTED; print(digest(run(name, *o)))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": hash_seed}, cwd=ROOT, capture_output=True,
        text=True, timeout=90, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == GOLDEN


GOLDEN = "c4eef5feb336ccea"


def test_a_full_queue_trims_and_what_was_trimmed_comes_again() -> None:
    result = run("incast", "ranks=9", "size=200000", "fabric.queue=30000")
    trimmed = figures(result)
    assert trimmed["fabric_trimmed"] > 20
    assert trimmed["fabric_dropped"] == 0
    assert trimmed["retransmits"] >= trimmed["fabric_trimmed"]
    assert trimmed["bytes_wrong"] == 0
    dropped = figures(run("incast", "ranks=9", "size=200000", "fabric.queue=30000", "fabric.trim=false"))
    assert dropped["fabric_trimmed"] == 0
    assert dropped["fabric_dropped"] > 20
    assert dropped["bytes_wrong"] == 0


def test_bytes_that_exist_only_in_number_take_the_same_time() -> None:
    real = run("incast", "ranks=5", "size=65536")
    phantom = run("incast", "ranks=5", "size=65536", "fabric.phantom=true")
    assert phantom.variants[0].phases[0].messages.tolist() == real.variants[0].phases[0].messages.tolist()
    assert "bytes: only their number was carried" in "".join(phantom.variants[0].notes)
    assert phantom.passed


def test_phantom_bytes_that_did_not_come_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from testbed.rank import Rank

    whole = Rank.prepare

    def one_less(rank: Rank, now: int, phase: int) -> dict[str, str]:
        sent = whole(rank, now, phase)
        rank._placed += 1
        return sent

    monkeypatch.setattr(Rank, "prepare", one_less)
    assert not run("pair", "size=1000", "messages=2", "fabric.phantom=true").passed


def test_a_cable_at_a_quarter_of_its_rate_slows_what_goes_over_it_until_it_is_well(tmp_path) -> None:  # type: ignore[no-untyped-def]
    def duration(fault: str) -> float:
        path = tmp_path / "slow.toml"
        path.write_text(f"""
name = "slow"
summary = "one flow, and a cable that is slow"
[transport]
cc = "fixed"
cc_parameters = {{ window_bdps = 2.0 }}
[workload]
kind = "pair"
messages = 1
size = 1000000
[fabric]
delay_us = 1
queue = "4MB"
ecn = "4MB"
{fault}
""")
        return figures(runner.run(scenario.load(str(path)), "sim", Silent()))["duration_us"]

    well = duration("")
    slow = duration('[[faults.cable]]\ncables = "h1-*"\nrate = 0.25')
    healed = duration('[[faults.cable]]\ncables = "h1-*"\nrate = 0.25\nend_us = 100')
    assert 3.8 < slow / well < 4.2
    assert well + 60 < healed < slow


def test_dead_cables_are_found_and_left(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "dead.toml"
    path.write_text("""
name = "dead"
summary = "one of two spines is gone"
[transport]
paths = 16
[workload]
kind = "permutation"
ranks = 4
messages = 20
size = 65536
[fabric]
kind = "leaf_spine"
hosts_per_leaf = 2
spines = 2
[[faults.cable]]
cables = "*-spine1"
down = true
start_us = 20
""")
    result = runner.run(scenario.load(str(path)), "sim", Silent())
    assert result.passed
    assert figures(result)["fabric_lost"] > 0
    assert figures(result)["evictions"] >= 4


MATRIX = """Nodes 4
Connections 4
Triggers 1
0->1 id 1 start 10 size 100000 send_done_trigger 1
2->1 id 2 start 0 size 50000 send_done_trigger 1
3->2 id 3 trigger 1 size 1000
1->0 id 4 start 200 size 1000
trigger id 1 barrier count 2
"""


@pytest.mark.parametrize("on", ["sim", "loopback"])
def test_a_matrix_of_htsim_is_obeyed_start_and_barrier(tmp_path, on: str) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "four.cm").write_text(MATRIX)
    path = tmp_path / "four.toml"
    path.write_text('name = "four"\nsummary = "x"\n[workload]\nkind = "cm"\nfile = "four.cm"\n')
    result = runner.run(scenario.load(str(path)), on, Silent())
    assert result.passed
    rows = {(row[0], row[1]): row for row in result.variants[0].phases[0].messages.tolist()}
    begin = rows[2, 1][3]
    assert rows[0, 1][3] - begin == 10_000_000
    assert rows[1, 0][3] - begin == 200_000_000
    assert rows[3, 2][3] == max(rows[0, 1][4], rows[2, 1][4])


def test_messages_that_wait_for_others_are_refused_over_sockets(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "four.cm").write_text(MATRIX)
    path = tmp_path / "four.toml"
    path.write_text('name = "four"\nsummary = "x"\n[workload]\nkind = "cm"\nfile = "four.cm"\n')
    with pytest.raises(ConfigError, match="only loopback and sim are allowed"):
        runner.run(scenario.load(str(path)), "udp", Silent())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["fabric.rate_gbps=0"], r"fabric\.rate_gbps = 0: a rate above 0 is allowed"),
        (
            ["fabric.kind=fat_tree", "fabric.radix=2", "ranks=9"],
            "fabric: fat_tree has 2 host ports, the workload needs 9",
        ),
        (["fabric.kind=fat_tree", "fabric.radix=5"], "radix = 5: a multiple of 2 is allowed"),
        (["fabric.ecn_low=9000", "fabric.ecn_high=8000"], "ecn_high = 8000: allowed are 9000 to"),
        (["fabric.kind=ring"], "fabric.kind = 'ring'"),
        (["fabric.kind=fat_tree", "transport.ports=2"], "fabric.kind = 'fat_tree' with 2 ports: allowed are star"),
        (['faults.cable=[{cables = "leaf9-*"}]'], "cables = 'leaf9-\\*' matches none; there are h0-leaf0 to h8-leaf0"),
    ],
)
def test_a_fabric_that_cannot_be_is_refused_by_name(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run("incast", *overrides)


def test_cables_are_refused_where_there_are_none() -> None:
    loaded = scenario.load("incast", ['faults.cable=[{cables = "h0-*", down = true}]'])
    with pytest.raises(ConfigError, match=r"faults\.cable: allowed on sim only, --on loopback has no cables"):
        runner.run(loaded, "loopback", Silent())


def test_a_run_that_cannot_end_says_what_is_missing() -> None:
    with pytest.raises(Exception, match=r"rank \d+.*requests outstanding with|RETRY_EXC_ERR"):
        run("pair", "size=1000", "messages=1", 'faults.cable=[{cables = "h1-*", down = true}]')


@pytest.mark.parametrize("name", ["s1-one-flow", "w1-incast-32", "w3-moving-port"])
def test_rows_of_the_comparison_set_meet_their_bounds(name: str) -> None:
    result = run(name)
    assert result.passed, result.to_json()
    assert any("tail_fct_us" in str(verdict) for verdict in result.variants[0].expect)


def test_the_same_row_misses_its_bound_without_credits() -> None:
    """Shows that it can fail: windows cut by marks end 32 senders apart."""
    result = run("w1-incast-32", "transport.cc=dctcp")
    assert not result.passed
    assert figures(result)["latency_cv"] > 0.05


def test_with_loss_every_flow_through_one_switch_ends_later_than_without() -> None:
    one = ["ranks=8", "size=65536", "messages=8", "fabric.delay_us=1"]
    well = run("permutation", *one)
    lossy = run("permutation", *one, 'faults.cable=[{cables = "*", loss = 0.01}]')
    assert lossy.passed
    assert figures(lossy)["messages"] == figures(well)["messages"] == 64
    assert figures(lossy)["fabric_lost"] > 10
    assert figures(lossy)["duration_us"] > figures(well)["duration_us"]


def test_classic_mode_over_a_lossless_fabric_sends_nothing_again_and_over_one_that_drops_it_does() -> None:
    result = run("classic-incast")
    missed = [(v.name, e) for v in result.variants for e in v.expect if not e.passed]
    assert missed == []
    assert result.passed

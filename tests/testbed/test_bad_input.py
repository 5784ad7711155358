"""Scenarios that cannot run over the simulator or loopback: refused before anything runs, with exit status 2 and a
message that names the field, the value and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from testbed.cli import app

SCENARIO = """
name = "bad"
summary = "the second variant cannot be"

[workload]
kind = "alltoall"
ranks = 3
messages = 1
size = "4KiB"

[expect]
bytes_wrong = 0

[[variant]]
name = "good"

[[variant]]
name = "other"
"""

LINE = """
[fabric]
kind = "graph"

[fabric.graph]
hosts = ["h0", "h1", "h2"]
switches = ["s0", "s1", "s2"]
cable = [
    { ends = ["h0", "s0"] }, { ends = ["h1", "s1"] }, { ends = ["h2", "s2"] },
    { ends = ["s0", "s1"] }, { ends = ["s1", "s2"] },
]
"""


def refused(path: Path, text: str, *overrides: str, on: str = "sim") -> str:
    """What the command says, after it was seen that nothing ran."""
    path.write_text(text)
    result: Any = CliRunner().invoke(app, ["run", str(path), "--on", on, *(f"--set={item}" for item in overrides)])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "phase 1 of" not in result.stderr
    assert result.stderr.startswith("polyroce: ")
    assert "Traceback" not in result.stderr
    return str(result.stderr)


TELEMETRY = """
from cc.base import Control


class Telemetry(Control):
    name = "telemetry"
    needs = frozenset({"int_telemetry"})
"""

#: What the second of two variants sets, and what is said of it.
VARIANTS = [
    ('"fabric.rate_gbps" = 0', "variant 'other': fabric.rate_gbps = 0: a rate above 0 is allowed"),
    ('"fabric.kind" = "fat_tree", "fabric.radix" = 2', "fat_tree has 2 host ports, the workload needs 3"),
    ('"fabric.kind" = "fat_tree", "fabric.radix" = 5', "radix = 5: a multiple of 2 is allowed"),
    ('"fabric.kind" = "ring"', "fabric.kind = 'ring': input should be 'star', 'dumbbell'"),
    ('"fabric.kind" = "topo"', "fabric.file is missing: fabric.kind = 'topo' needs a topology file"),
    ('"fabric.kind" = "topo", "fabric.file" = "none.topo"', "none.topo cannot be read: No such file"),
    ('"fabric.kind" = "graph"', "fabric.graph is missing: fabric.kind = 'graph' needs its hosts"),
    ('"fabric.kind" = "fat_tree", "transport.ports" = 2', "fabric.kind = 'fat_tree' with 2 ports: allowed are star"),
    ('"fabric.pfc_xoff" = 9000, "fabric.pfc_xon" = 9001', "pfc_xon = 9001: allowed are 0 to 9000 bytes"),
    ('"fabric.shared_buffer" = 100', "shared_buffer = 100: allowed are 4096 to"),
    ('"fabric.queue" = 100', "queue data_bytes = 100: allowed are 4096 to"),
    ('"fabric.ecn_low" = 9, "fabric.ecn_high" = 8', "ecn_high = 8: allowed are 9 to"),
    ('"faults.cable" = [{ cables = "leaf9-*" }]', "cables = 'leaf9-*' matches none; there are h0-leaf0 to h2-leaf0"),
    ('"faults.cable" = [{ cables = "*", rate = 0.0 }]', "faults.cable.0.rate = 0.0: input should be greater than 0"),
    ('"faults.cable" = [{ cables = "*", start_us = -1.0 }]', "faults.cable.0.start_us = -1.0: input should be greater"),
    ('"transport.cc" = "bbr"', "cc = 'bbr': congestion control 'bbr' is unknown; known: "),
    ('"transport.selector" = "best"', "selector = 'best': allowed are "),
    ('"workload.kind" = "allreduce", "workload.ranks" = 3', "key workload.messages is unknown"),
]


@pytest.mark.parametrize(("changes", "message"), VARIANTS, ids=[changes for changes, _ in VARIANTS])
def test_a_variant_that_cannot_be_is_refused_before_the_one_in_front_of_it_runs(
    tmp_path: Path, changes: str, message: str
) -> None:
    assert message in refused(tmp_path / "bad.toml", SCENARIO + f"set = {{ {changes} }}\n")


@pytest.mark.parametrize("on", ["sim", "loopback"])
def test_a_control_that_needs_telemetry_is_refused_where_there_is_none(tmp_path: Path, on: str) -> None:
    (tmp_path / "mine.py").write_text(TELEMETRY)
    text = SCENARIO + f"set = {{ 'transport.cc' = '{tmp_path}/mine.py:Telemetry' }}\n"
    told = refused(tmp_path / "bad.toml", text, on=on)
    assert f"control telemetry needs int_telemetry, which --on {on} does not give here" in told
    assert "--on sim with fabric.int_telemetry = true does" in told


def test_cables_are_refused_on_loopback_before_anything_runs(tmp_path: Path) -> None:
    text = SCENARIO + 'set = { "faults.cable" = [{ cables = "*", down = true }] }\n'
    assert "faults.cable: allowed on sim only" in refused(tmp_path / "bad.toml", text, on="loopback")


#: What becomes of the line, and what is said of it.
GRAPHS = [
    ('{ ends = ["s1", "s2"] },', "", "topology: there is no way from h0 to h2: every host must reach every other"),
    ('{ ends = ["h2", "s2"] },', "", "host port h2 has 0 cables: 1 is allowed"),
    ('"s2"]\n', '"s2", "s3"]\n', "switch s3 has 0 cables: at least 1 is allowed"),
    ('["s1", "s2"] }', '["s1", "s9"] }', "cable s1 to s9: s9 is no switch and no host"),
    ('["s1", "s2"] }', '["s1", "s1"] }', "cable s1 to s1: both ends are the same, two nodes are allowed"),
    ('["h2", "s2"]', '["h2", "h1"]', "cable h2 to h1: one end must be a switch"),
    ('["s1", "s2"] }', '["s1", "s2"], count = 0 }', "graph.cable.4.count = 0: input should be greater than or equal"),
    ('["s1", "s2"] }', '["s1"] }', "fabric.graph.cable.4.ends = ['s1']: list should have at least 2 items"),
    ('["s1", "s2"] }', '["s1", "s2"], rate_gbps = 0.0 }', "cable.4.rate_gbps = 0.0: input should be greater than 0"),
    ('["s1", "s2"] }', '["s1", "s2"], delay_us = -1.0 }', "cable.4.delay_us = -1.0: input should be greater than or"),
    (
        '["s1", "s2"] }',
        '["s1", "s2"], speed = 1 }',
        "key fabric.graph.cable.4.speed is unknown; known: ends",
    ),
    ('"h2"]', '"h1"]', "topology: h1 is there twice"),
    ('"h2"]', '"h-2"]', "fabric.graph.hosts.2 = 'h-2': string should match pattern"),
    ('"s2"]\n', '"s2"]\nnodes = 3\n', "key fabric.graph.nodes is unknown; known: hosts, switches, cable"),
    ('hosts = ["h0", "h1", "h2"]', 'hosts = ["h0"]', "fabric.graph.hosts = ['h0']: list should have at least 2 items"),
]


@pytest.mark.parametrize(("old", "new", "message"), GRAPHS, ids=[message for _, _, message in GRAPHS])
def test_a_graph_that_is_none_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert message in refused(tmp_path / "bad.toml", SCENARIO + LINE.replace(old, new, 1))


def test_too_few_hosts_of_a_graph_are_refused(tmp_path: Path) -> None:
    told = refused(tmp_path / "bad.toml", SCENARIO + LINE, "workload.ranks=4")
    assert "fabric: graph has 3 host ports, the workload needs 4" in told


def ring(switches: int) -> str:
    numbers = range(switches)
    cables = [f'{{ ends = ["h{i}", "s{i}"] }}, {{ ends = ["s{i}", "s{(i + 1) % switches}"] }}' for i in numbers]
    names = {kind: [f"{kind}{i}" for i in numbers] for kind in "hs"}
    return (
        '[fabric]\nkind = "graph"\npfc_xoff = 100_000\n[fabric.graph]\n'
        f"hosts = {names['h']}\nswitches = {names['s']}\ncable = [{', '.join(cables)}]\n"
    )


def test_a_circle_in_which_switches_may_stop_each_other_for_good_is_refused(tmp_path: Path) -> None:
    told = refused(tmp_path / "bad.toml", SCENARIO + ring(5))
    assert "pfc_xoff: the shortest ways go round s" in told
    assert "allowed is 0, or a topology without such a circle" in told


@pytest.mark.parametrize("fabric", [ring(5).replace("100_000", "0"), ring(3), LINE], ids=["no PFC", "three", "a line"])
def test_a_circle_without_that_danger_runs(tmp_path: Path, fabric: str) -> None:
    path = tmp_path / "good.toml"
    path.write_text(SCENARIO + fabric)
    assert CliRunner().invoke(app, ["run", str(path), "--on", "sim"]).exit_code == 0


MATRIX = """
name = "bad"
summary = "a matrix that cannot be"
workload = { kind = "cm", file = "m.cm" }
"""


@pytest.mark.parametrize("on", ["sim", "loopback"])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0->4 start 0 size 5", "m.cm, line 3: 0->4: to = '4': allowed are whole numbers from 0 to 3"),
        ("9->1 start 0 size 5", "m.cm, line 3: 9->1: from = '9': allowed are whole numbers from 0 to 3"),
        ("2->2 start 0 size 5", "2->2: host 2 sends to itself: two different hosts are allowed"),
        ("0->1 start -1 size 5", "m.cm, line 3: start = '-1' us: allowed are whole picoseconds from 0 to"),
        ("0->1 start 0 size 0", "m.cm, line 3: size = '0': allowed are whole numbers from 1 to"),
        ("0->1 id 1 trigger 1 size 5 send_done_trigger 1\ntrigger id 1 oneshot", "it can never begin: trigger 1 waits"),
    ],
)
def test_a_matrix_that_cannot_be_is_refused(tmp_path: Path, on: str, line: str, message: str) -> None:
    triggers = "Triggers 1\n" if "trigger" in line else ""
    (tmp_path / "m.cm").write_text(f"Nodes 4\nConnections 1\n{triggers}{line}\n")
    assert message in refused(tmp_path / "bad.toml", MATRIX, on=on)


def test_a_matrix_with_more_hosts_than_the_fabric_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.cm").write_text("Nodes 20\nConnections 1\n0->19 start 0 size 5\n")
    told = refused(tmp_path / "bad.toml", MATRIX, "fabric.kind=fat_tree", "fabric.radix=4")
    assert "fabric: fat_tree has 16 host ports, the workload needs 20" in told


TOPOLOGY = """Nodes 8
Tiers 2
Podsize 8
Tier 0
Downlink_speed_Gbps 100
Downlink_Latency_ns 1000
Radix_Down 4
Radix_Up 4
Tier 1
Downlink_speed_Gbps 100
Downlink_Latency_ns 1000
Radix_Down 2
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Downlink_speed_Gbps 100", "Downlink_speed_Gbps 0", "line 5: Downlink_speed_Gbps = '0': allowed are whole"),
        ("Latency_ns 1000", "Latency_ns -1", "line 6: Downlink_Latency_ns = '-1': allowed are whole numbers from 1"),
        ("Radix_Up 4", "Radix_Up 3", "Oversubscribed 1: its ports and speeds make it 4/3"),
        ("Radix_Down 2", "Radix_Down 1", "Radix_Down 1: spine0 comes to have 2 links down"),
        ("Radix_Down 4", "Radix_Down 4\nQueue_Down 10", "t.topo: queue = 10: allowed are 4160 to"),
        ("Nodes 8\n", "Nodes 80000\n", "t.topo: Nodes 80000: allowed are 2 to 65534"),
    ],
)
def test_a_topology_file_that_cannot_be_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    (tmp_path / "t.topo").write_text(TOPOLOGY.replace(old, new, 1))
    told = refused(tmp_path / "bad.toml", SCENARIO + '[fabric]\nkind = "topo"\nfile = "t.topo"\n')
    assert message in told

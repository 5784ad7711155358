"""Recordings of runs over the simulator: they change nothing, add up to what the run says, and are as documented."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from testbed import runner, scenario
from testbed.cli import app
from testbed.errors import RunError
from testbed.progress import Silent
from testbed.record.recorder import RecordPlan
from testbed.record.tables import TABLES
from testbed.report import RunResult
from transport.clock import US

pytestmark = pytest.mark.xdist_group("ports")

CONGESTED = ["ranks=7", "size=150000", "fabric.queue=40000", "fabric.kind=leaf_spine", "fabric.hosts_per_leaf=2",
             "faults.loss=0.001", "fabric.cut_through=false"]  # fmt: skip

RUNS = [
    ("incast", CONGESTED, 10),
    ("incast", [*CONGESTED, "fabric.pfc_xoff=20000"], 1),
    ("moe-alltoall", ["size=small"], 3),
    ("two-ports", ["messages=40", "interval_us=200", "fabric.ecn=20000"], 10),
    ("one-to-n", ["ranks=4", "size=65536", "messages=2", "op=read", "fabric.kind=dumbbell"], 0.5),
    ("classic-incast", [], 20),
    ("pair", ["messages=2", "interval_us=5000", "watch.every_us=7"], 10),
]


def run(name: str, overrides: list[str], folder: Path | None = None, every_us: float = 10) -> RunResult:
    plan = None if folder is None else RecordPlan.of(folder, every_us)
    return runner.run(scenario.load(name, overrides), "sim", Silent(), record=plan)


def table(folder: Path, name: str, variant: str | None = None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / f"{name}.parquet").to_pylist()
    return [row for row in rows if variant in (None, row["variant"])]


@pytest.mark.parametrize(("name", "overrides", "every_us"), RUNS, ids=[f"{name} {every}" for name, _, every in RUNS])
def test_a_run_gives_the_same_to_the_bit_with_a_recording_that_adds_up(
    tmp_path: Path, name: str, overrides: list[str], every_us: float
) -> None:
    recorded = run(name, overrides, tmp_path, every_us)
    assert json.dumps(recorded.to_json()) == json.dumps(run(name, overrides).to_json())
    for variant in recorded.variants:
        figures = variant.metrics
        rows = {kind: table(tmp_path, kind, variant.name) for kind in TABLES}
        last = {row["port"]: row for row in rows["ports"]}.values()
        assert sum(row["packets"] for row in last) == figures["packet_hops"]
        assert sum(row["marked"] for row in last) == figures["fabric_marked"]
        assert sum(row["trimmed"] for row in last) == figures["fabric_trimmed"]
        assert sum(row["lost"] for row in last) == figures["fabric_lost"]
        assert sum(row["pauses"] for row in last) == figures["pfc_pauses"]
        assert sum(row["packets"] for row in rows["paths"]) == figures["packets"]
        assert sum(row["marked"] for row in rows["paths"]) == figures["marked_packets"]
        begin = min(record.messages[:, 3].min() for record in variant.phases)
        messages = [
            (record.name, *row[:3], row[3] - begin, row[4] - begin)
            for record in variant.phases
            for row in record.messages.tolist()
        ]
        assert [tuple(row.values())[1:-1] for row in rows["messages"]] == messages
        assert {row["status"] for row in rows["messages"]} == {"SUCCESS"}
        assert sum(row["messages"] for row in rows["flows"]) == len(messages)
        assert sum(row["size_bytes"] for row in rows["flows"]) == figures["logical_bytes"]


def test_samples_are_taken_at_the_interval_and_only_where_something_is_new(tmp_path: Path) -> None:
    result = run("incast", CONGESTED, tmp_path, 5)
    rows = table(tmp_path, "ports")
    end = max(row["completion_ps"] for row in table(tmp_path, "messages"))
    times = sorted({row["time_ps"] for row in rows})
    assert times[0] == 0
    assert times[-1] == end
    assert all(time % (5 * US) == 0 for time in times[:-1])
    assert Counter(row["time_ps"] for row in rows)[0] == 2 * (7 + 1 + 4 * 8)  # every port, at both ends of every cable
    before: dict[str, dict[str, Any]] = {}
    for row in rows:
        old = before.get(row["port"])
        assert old is None or (row["time_ps"] > old["time_ps"] and {**row, "time_ps": 0} != {**old, "time_ps": 0})
        assert old is None or row["sent_bytes"] >= old["sent_bytes"]
        before[row["port"]] = row
    queued = max(row["queued_bytes"] for row in rows if row["port"] == "leaf0>h0")
    assert 20_000 < queued <= 40_000
    assert result.passed


def test_a_control_is_seen_to_hold_back_and_to_measure_round_trips(tmp_path: Path) -> None:
    run("incast", CONGESTED, tmp_path, 5)
    rows = [row for row in table(tmp_path, "control") if row["src"] == 3]
    assert {row["dst"] for row in rows} == {0}
    assert rows[0]["srtt_ps"] is None
    assert min(row["window_bytes"] for row in rows) < rows[0]["window_bytes"]
    assert max(row["in_flight_bytes"] for row in rows) > 0
    assert rows[-1]["in_flight_bytes"] == 0
    assert rows[-1]["srtt_ps"] > 10 * US


def test_nothing_is_sampled_while_nothing_happens(tmp_path: Path) -> None:
    run("pair", ["messages=2", "size=1000", "interval_us=100000"], tmp_path, 1)
    assert len({row["time_ps"] for row in table(tmp_path, "ports")}) < 100


def test_a_run_that_fails_leaves_what_was_recorded_and_says_what_was_outstanding(tmp_path: Path) -> None:
    dead = ["messages=2", "size=50000", 'faults.cable=[{cables = "h1-*", down = true, start_us = 12}]']
    with pytest.raises(RunError):
        run("pair", dead, tmp_path)
    rows = table(tmp_path, "messages")
    assert [row["status"] for row in rows] == ["SUCCESS", "OUTSTANDING"]
    assert [row["completion_ps"] is None for row in rows] == [False, True]
    (flow,) = table(tmp_path, "flows")
    assert (flow["messages"], flow["size_bytes"]) == (2, 100_000)
    assert (flow["completion_ps"], flow["status"]) == (None, "OUTSTANDING")
    assert max(row["lost"] for row in table(tmp_path, "ports")) > 0


def test_paths_of_two_planes_and_of_two_phases_are_told_apart(tmp_path: Path) -> None:
    run("pair", ["phases=2", "messages=8", "transport.ports=2", "transport.paths=4"], tmp_path)
    rows = table(tmp_path, "paths")
    assert len({row["phase"] for row in rows}) == 2
    assert {row["plane"] for row in rows} == {0, 1}
    assert len({(row["phase"], row["plane"], row["entropy"]) for row in rows}) == len(rows) == 16


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["run", "pair", "--set", "messages=2", "--set", "size=8KiB", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--on", "loopback", "--record", "DIR"], "--record: allowed with --on sim only, --on loopback has no fabric"),
        (["--on", "udp", "--record", "DIR"], "--record: allowed with --on sim only"),
        (
            ["--on", "sim", "--record", "DIR", "--record-every", "0"],
            "--record-every 0: allowed are 0.001 to 1000000",
        ),
        (["--on", "sim", "--record", "DIR", "--record-every", "nan"], "--record-every nan: allowed are"),
        (["--on", "sim", "--record", "DIR", "--set", "fabric.rate_gbps=0"], "fabric.rate_gbps = 0"),
        (["--on", "sim", "--record", "FILE"], "file: cannot be written: File exists"),
    ],
)
def test_what_cannot_be_recorded_is_refused_by_name(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "file").write_text("")
    places = {"DIR": str(tmp_path / "new"), "FILE": str(tmp_path / "file")}
    result = call(*(places.get(item, item) for item in arguments))
    assert result.exit_code == 2
    assert message in result.stderr
    assert "phase 1 of" not in result.stderr
    assert not (tmp_path / "new").exists()


def test_without_pyarrow_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = call("--on", "sim", "--record", str(tmp_path / "new"))
    assert result.exit_code == 2
    assert result.stderr == (
        "polyroce: --record: the files are written by pyarrow, which is missing: pip install 'polyroce[record]'\n"
    )
    assert call("--on", "sim").exit_code == 0


DOCUMENT = (Path(__file__).resolve().parent.parent.parent / "docs" / "recording.md").read_text(encoding="utf-8")


def test_the_document_has_every_table_and_column_as_the_files_have(tmp_path: Path) -> None:
    assert call("--on", "sim", "--record", str(tmp_path)).exit_code == 0
    documented = {
        name: re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", part, re.MULTILINE)
        for name, part in re.findall(r"^`(\w+)\.parquet`: (.*?)(?=^`|^Counts)", DOCUMENT, re.MULTILINE | re.DOTALL)
    }
    written = {
        path.stem: [
            (field.name, f"{field.type}{', or null' if field.nullable else ''}", field.metadata[b"meaning"].decode())
            for field in pq.read_schema(path)
        ]
        for path in tmp_path.glob("*.parquet")
    }
    assert documented == written
    about = pq.read_schema(tmp_path / "ports.parquet").metadata
    assert (about[b"scenario"], about[b"seed"], about[b"every_ps"]) == (b"pair", b"1", b"10000000")


def test_the_example_of_the_document_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("incast", [], tmp_path / "recorded")
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        exec(example, {})
    finally:
        os.chdir(here)
    told = capsys.readouterr().out
    assert re.match(r"\d+ bytes at \d+ us, \d+ of \d+ packets marked\n\{'src': 1, 'dst': 0, 'packets_sum': \d+", told)

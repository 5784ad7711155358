"""The command line: what it prints, what it refuses, and its exit statuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import transport.packet
from testbed import scenario
from testbed.cli import app
from testbed.metrics import METRICS
from testbed.processes import rank_environment
from testbed.report import PHASE_METRICS
from transport.nic.udp import UdpNic

pytestmark = pytest.mark.xdist_group("ports")

SMALL = ("run", "pair", "--on", "loopback", "--set", "messages=2", "--set", "size=8KiB")


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_version_says_what_runs() -> None:
    result = call("--version")
    mode = "interpreted" if str(transport.packet.__file__).endswith(".py") else "compiled"
    assert result.exit_code == 0
    assert result.stdout.split() == ["polyroce", result.stdout.split()[1], mode]


def test_the_module_is_the_same_program() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "testbed", "--version"], env=rank_environment(), capture_output=True, text=True
    )
    assert done.stdout == call("--version").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "moe-allto"), "'moe-allto' is unknown; known: allreduce-ring"),
        (("run", "nothing.toml"), "nothing.toml cannot be read"),
        (("run", "pair", "--on", "air"), "--on air: allowed are udp, dgram, loopback"),
        (("run", "pair", "--cc", "bbr"), "'bbr' is unknown; known: fixed"),
        (("run", "pair", "--cc", "mine.py:Mine"), "mine.py cannot be read"),
        (("run", "pair", "--selector", "best"), "selector = 'best': allowed are"),
        (("run", "pair", "--paths", "0"), "paths = 0: allowed are whole numbers from 1 to"),
        (("run", "pair", "--paths", "20000"), "paths = 20000: allowed are whole numbers from 1 to"),
        (("run", "pair", "--ranks", "3"), "--set workload.ranks=3"),
        (("run", "moe-alltoall", "--ranks", "7"), "ranks = 7: olmoe has 64 experts"),
        (("run", "moe-alltoall", "--set", "domain=news"), "domain = 'news': allowed are arxiv"),
        (("run", "pair", "--seed", "-1"), "seed = -1"),
        (("run", "pair", "--set", "size=-4"), "size = -4: allowed are 0 to 4 GiB"),
        (("run", "pair", "--set", "transport.wings=2"), "key transport.wings is unknown; known: paths"),
        (("run", "pair", "--set", "transport.mtu=1500"), "mtu = 1500: allowed are the verbs MTUs 256, 512, 1024"),
        (("run", "pair", "--set", "nonsense"), "written key=value"),
        (("cc", "bbr"), "'bbr' is unknown; known: fixed"),
        (("perf",), "give one of --server, HOST, --local"),
        (("perf", "--local", "--server"), "give one of --server, HOST, --local"),
        (("perf", "--local", "--op", "steal"), "--op steal: allowed are write, write_imm, send, read"),
        (("perf", "--local", "--size", "-5"), "--size = '-5': allowed are 0 to 4 GiB"),
        (("perf", "--local", "--size", "0"), "size = 0: allowed are 1 to 1GiB"),
        (("perf", "--local", "--mtu", "1500"), "mtu = 1500: allowed are the verbs MTUs"),
        (("perf", "--local", "--paths", "0"), "paths = 0: allowed are"),
        (("perf", "--local", "--paths", "20000"), "paths = 20000: allowed are"),
        (("perf", "--local", "--cc", "bbr"), "'bbr' is unknown"),
        (("perf", "--local", "--selector", "best"), "selector = 'best'"),
        (("perf", "--local", "--qps", "0"), "qps = 0: allowed are 1 to 1024"),
        (("perf", "--local", "--duration", "0"), "duration = 0.0: allowed are"),
        (("perf", "--local", "--latency", "--qps", "2"), "qps = 2: latency is measured on 1"),
        (("perf", "--server", "--bind", "192.0.2.1"), "cannot listen on TCP 192.0.2.1 port 18515"),
    ],
)
def test_bad_input_is_named_and_ends_with_status_2(arguments: tuple[str, ...], message: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("polyroce: ")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [("fly",), ("run",), ("run", "pair", "--wings"), ("run", "pair", "--paths", "x")])
def test_bad_usage_ends_with_status_2(arguments: tuple[str, ...]) -> None:
    assert call(*arguments).exit_code == 2


def test_bad_input_ends_a_process_with_status_2() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "testbed", "run", "pair", "--paths", "0"],
        env=rank_environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [("run", "pair", "--on", "udp"), ("perf", "--local", "--duration", "0.1")])
def test_a_port_in_use_ends_with_status_2(arguments: tuple[str, ...]) -> None:
    nic = UdpNic("127.0.0.1", [0xC123])
    result = call(*arguments)
    nic.close()
    assert result.exit_code == 2
    assert "127.0.0.1:4791 is in use" in result.stderr


def test_a_missed_limit_ends_with_status_1(tmp_path: Path) -> None:
    file = tmp_path / "strict.toml"
    file.write_text(
        'name = "strict"\nsummary = "nothing is this fast"\n[workload]\nkind = "pair"\nmessages = 1\nsize = "4KiB"\n'
        "[expect]\ntail_fct_us = 0.001\n"
    )
    result = call("run", str(file), "--on", "loopback")
    assert result.exit_code == 1
    assert "expect tail_fct_us max 0.001" in result.stdout
    assert "FAILED" in result.stdout


def test_a_run_without_terminal_prints_plain_lines() -> None:
    result = call(*SMALL)
    assert result.exit_code == 0
    assert "phase 1 of 1: pair" in result.stderr
    assert "\x1b" not in result.output
    assert "PASSED" in result.stdout


def test_json_of_a_run_has_exactly_the_promised_keys(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    assert call(*SMALL, "--json", str(out)).exit_code == 0
    result = json.loads(out.read_text())
    assert list(result) == [
        "scenario", "on", "seed", "version", "compiled", "passed", "expect", "phases", "variants", "metrics",
    ]  # fmt: skip
    assert (result["scenario"], result["on"], result["seed"], result["passed"]) == ("pair", "loopback", 1, True)
    assert result["expect"] == [{"name": "bytes_wrong", "value": 0, "limit": {"max": 0.0}, "passed": True}]
    assert set(result["metrics"]) == set(METRICS)
    assert [set(phase) - set(PHASE_METRICS) for phase in result["phases"]] == [
        {"name", "hottest_rank", "hottest_share_percent", "hottest_port"}
    ]
    (variant,) = result["variants"]
    assert set(variant) == {"name", "passed", "expect", "phases", "metrics"}
    assert result["metrics"]["eviction_share"] is None


def test_json_on_standard_output_is_alone_there() -> None:
    result = call(*SMALL, "--json", "-")
    assert json.loads(result.stdout)["passed"]
    assert "PASSED" in result.stderr


def test_json_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    result = call(*SMALL, "--json", str(tmp_path / "nowhere" / "x.json"))
    assert result.exit_code == 2
    assert "x.json: cannot be written" in result.stderr


def test_short_options_are_stronger_than_set() -> None:
    arguments = (*SMALL, "--set", "transport.paths=3", "--paths", "5", "--json", "-")
    assert json.loads(call(*arguments).stdout)["metrics"]["paths_used"] <= 5
    assert json.loads(call(*SMALL, "--selector", "single", "--json", "-").stdout)["metrics"]["paths_used"] == 1


def test_a_control_in_a_users_file_is_run(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from cc.base import Control\n\n\nclass Mine(Control):\n    name = 'mine'\n")
    assert call(*SMALL, "--cc", f"{file}:Mine").exit_code == 0
    listed = call("cc", f"{file}:Mine")
    assert "no parameters" in listed.stdout


def test_the_list_has_every_scenario() -> None:
    names = list(scenario.known())
    assert [item["name"] for item in json.loads(call("list", "--json").stdout)] == names
    text = call("list").stdout
    assert all(name in text for name in names)


def test_the_controls_are_listed_with_what_they_need() -> None:
    text = call("cc").stdout
    assert all(name in text for name in ("fixed", "dctcp", "swift", "nscc", "ecn", "RFC 8257"))


def test_a_control_is_shown_with_parameters_ranges_units_and_source() -> None:
    text = call("cc", "dctcp").stdout
    assert "RFC 8257" in text
    assert "restart_after" in text
    assert "base RTTs" in text
    assert "0.0625" in text

"""Runs with real rank processes over real sockets: bytes, faults, death, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from testbed import processes, runner, scenario
from testbed.errors import RunError
from testbed.progress import Silent
from testbed.report import RunResult
from transport.errors import ConfigError, NegotiationError, NicError
from transport.nic.udp import UdpNic
from transport.pcapfile import read

pytestmark = pytest.mark.xdist_group("ports")

#: A run that lasts until it is stopped: ten messages a second.
LONG = ("messages=600", "size=64", "interval_us=100000", "timeout_s=60")


def run(name: str, *overrides: str, pcap: str = "") -> RunResult:
    return runner.run(scenario.load(name, overrides), "udp", Silent(), pcap)


def rank_processes() -> list[int]:
    """Processes on this machine that are ranks of a test run by this process or by a child of it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            mine = f"POLYROCE_TEST={os.getpid()}".encode() in path.with_name("environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mine and b"testbed.rank_process" in words:
            found.append(int(path.parent.name))
    return found


@pytest.fixture(autouse=True)
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYROCE_TEST", str(os.getpid()))


def eventually(condition: Any, what: str) -> Any:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"never happened: {what}")


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command line in a process of its own."""
    environment = processes.rank_environment()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "testbed", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_the_main_job_small_with_eight_processes(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    with command("run", "moe-alltoall", "--on", "udp", "--set", "size=small", "--json", str(out)) as process:
        text, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "bytes: all match" in text
    assert "phase 7 of 7: layer 15 combine" in errors
    result = json.loads(out.read_text())
    assert result["passed"]
    assert [phase["hottest_rank"] for phase in result["phases"][::2]] == [1, 3, 7]
    for phase in result["phases"]:
        assert phase["wire_bytes"] > phase["logical_bytes"] > 0
        assert phase["ideal_us"] > 0
        assert phase["paths_used"] > 0
    assert rank_processes() == []


@pytest.mark.parametrize("op", ["write_imm", "send", "read"])
def test_every_operation_over_sockets(op: str) -> None:
    result = run("pair", f"op={op}", "messages=20", "size=10000", "transport.rq_depth=4")
    assert result.passed
    assert result.variants[0].metrics["messages"] == 20


def test_loss_duplicates_and_reordering_change_no_byte() -> None:
    faults = ("faults.loss=0.03", "faults.duplicate=0.05", "faults.reorder=0.1", "faults.reorder_us=500")
    result = run("pair", "messages=20", "size=64KiB", *faults)
    assert result.passed
    assert (result.variants[0].metrics["retransmits"] or 0) > 0


def test_c6_over_sockets_keeps_bytes_completions_and_order() -> None:
    result = run("c6-dead-path", "size=64KiB")
    assert [(v.name, e) for v in result.variants for e in v.expect if e.passed is False] == []
    assert [v.metrics["messages"] for v in result.variants] == [192, 192]


def test_a_plane_dies_and_comes_back_over_sockets() -> None:
    result = run("two-ports", "size=64KiB")
    assert [e for e in result.variants[0].expect if e.passed is False] == []
    assert result.variants[0].metrics["paths_used"] == 32


def test_c2_over_sockets_keeps_bytes_and_completions() -> None:
    result = run("c2-multipath-idle", "messages=20")
    assert [v.metrics["bytes_wrong"] for v in result.variants] == [0, 0]
    assert [v.metrics["messages"] for v in result.variants] == [20, 20]
    assert {e.name: e.passed for e in result.variants[0].expect}["latency_p50_change_percent"] is None


def test_c7_over_sockets_keeps_bytes_and_retransmission_counts() -> None:
    result = run("c7-loss", "size=512KiB")
    assert [(v.name, e) for v in result.variants for e in v.expect if e.passed is False] == []


def test_c8_over_sockets_keeps_bytes_and_completions() -> None:
    result = run("c8-reordering", "size=64KiB")
    assert result.passed
    assert [v.metrics["messages"] for v in result.variants] == [32, 32]
    assert {e.name: e.passed for e in result.variants[0].expect}["spurious_percent"] is None


def test_a_capture_has_what_all_ranks_sent_in_order_of_time(tmp_path: Path) -> None:
    result = run("pair", "messages=2", "size=8KiB", pcap=str(tmp_path / "out.pcap"))
    _, frames = read(tmp_path / "out.pcap")
    assert [path.name for path in tmp_path.iterdir()] == ["out.pcap"]
    assert [time for time, _ in frames] == sorted(time for time, _ in frames)
    assert len(frames) > (result.variants[0].metrics["packets"] or 0)
    assert {frame[26:30] for _, frame in frames} == {bytes([127, 0, 0, 1]), bytes([127, 0, 0, 2])}


def test_a_capture_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--pcap .*nowhere/x\.pcap: cannot be written: No such file"):
        run("pair", pcap=str(tmp_path / "nowhere" / "x.pcap"))


def test_a_port_in_use_is_named_and_nothing_is_left_behind() -> None:
    nic = UdpNic("127.0.0.2", [0xC123])
    with pytest.raises(NicError, match=r"127\.0\.0\.2:4791 is in use"):
        run("pair")
    nic.close()
    assert rank_processes() == []


def test_a_rank_that_is_killed_midway_is_named_and_nothing_is_left_behind() -> None:
    with command("run", "incast", "--on", "udp", "--ranks", "4", *(f"--set={item}" for item in LONG)) as process:
        assert process.stderr is not None
        while "phase 2 of 2" not in process.stderr.readline():
            assert process.poll() is None
        victim = sorted(rank_processes())[2]
        os.kill(victim, signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"(process {victim}) died, killed by signal 9 (SIGKILL)" in errors
    assert "run failed: rank " in errors
    assert rank_processes() == []


@pytest.mark.parametrize(("blow", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_no_rank_outlives_the_run_however_it_is_stopped(blow: signal.Signals, status: int) -> None:
    with command("run", "pair", "--on", "udp", *(f"--set={item}" for item in LONG)) as process:
        assert process.stderr is not None
        while "phase 1 of 1" not in process.stderr.readline():
            assert process.poll() is None
        assert len(rank_processes()) == 2
        process.send_signal(blow)
        process.communicate(timeout=60)
    assert process.returncode == status
    eventually(lambda: not rank_processes(), "all ranks are gone")


def test_a_phase_past_its_deadline_says_who_waits_for_what() -> None:
    with pytest.raises(RunError, match=r"rank 0: 0\.05 s are over\. phase 'pair': .* 59\d requests not posted"):
        run("pair", *LONG, "timeout_s=0.05")
    assert rank_processes() == []


def test_a_dead_network_ends_in_the_error_of_the_rank() -> None:
    dead = "faults.blackhole=[{path = 0}]"
    with pytest.raises(RunError, match=r"rank 0, phase 'pair': RDMA_WRITE ended with RETRY_EXC_ERR"):
        run("pair", "messages=1", "transport.paths=1", "transport.retries=1", "transport.rto_min_us=1000", dead)


def test_an_error_of_a_rank_keeps_its_kind() -> None:
    child = processes._Child.__new__(processes._Child)
    child.number = 0

    class Said:
        def __init__(self, kind: str) -> None:
            self.kind = kind

        def poll(self) -> dict[str, str]:
            return {"type": "failed", "kind": self.kind, "text": "what happened"}

    coordinator = processes.Coordinator.__new__(processes.Coordinator)
    for kind, wanted in (("NegotiationError", NegotiationError), ("NicError", NicError), ("Time", RunError)):
        child.channel = Said(kind)  # type: ignore[assignment]
        with pytest.raises(wanted, match="what happened"):
            coordinator._message(child)

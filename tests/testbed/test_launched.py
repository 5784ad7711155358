"""Runs whose ranks a launcher started: mpirun itself, and the variables that torchrun sets."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from testbed import launched
from transport.errors import ConfigError, NegotiationError
from transport.exchange import Refusal
from transport.group import Group
from transport.launch import World

pytestmark = pytest.mark.xdist_group("ports")

MPIRUN = shutil.which("mpirun")
if os.environ.get("CI"):
    assert MPIRUN is not None, "mpirun is not installed, and CI must have it"
needs_mpirun = pytest.mark.skipif(MPIRUN is None, reason="mpirun is not installed")

POLYROCE = [sys.executable, "-m", "testbed"]
#: Ten messages a second, for a minute.
LONG = ["--set", "messages=600", "--set", "size=64", "--set", "interval_us=100000", "--set", "timeout_s=60"]


def environment(**more: str) -> dict[str, str]:
    """Without what an outer launcher may have left."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "SLURM_", "PMIX_"))}
    return mine | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} | more


def mpirun(count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert MPIRUN is not None
    return subprocess.run(
        [MPIRUN, "--oversubscribe", "-n", str(count), *POLYROCE, "run", *arguments],
        env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def torchrun(size: int, *arguments: str, ranks: range | None = None) -> list[subprocess.Popen[str]]:
    """The processes of a world as torchrun starts them."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = str(sock.getsockname()[1] - 1)
    return [
        subprocess.Popen(
            [*POLYROCE, "run", *arguments],
            env=environment(
                RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size),
                MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE="True",
            ),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in (ranks or range(size))
    ]  # fmt: skip


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Status, output and errors of each."""
    found = []
    try:
        for process in processes:
            out, errors = process.communicate(timeout=100)
            found.append((process.returncode, out, errors))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return found


@needs_mpirun
def test_mpirun_starts_the_ranks(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = mpirun(4, "incast", "--set", "workload.size=65536", "--json", str(result))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("PASSED") == 1  # rank 0 alone speaks
    [variant] = json.loads(result.read_text())["variants"]
    assert variant["metrics"]["bytes_wrong"] == 0
    assert variant["metrics"]["messages"] == 3


@needs_mpirun
def test_every_variant_runs_and_a_capture_is_one_file(tmp_path: Path) -> None:
    capture = tmp_path / "all.pcap"
    done = mpirun(
        2, "c2-multipath-idle", "--set", "workload.size=65536", "--set", "timeout_s=50", "--pcap", str(capture)
    )
    assert done.returncode in (0, 1), done.stderr  # its limits are not for a machine that runs tests
    captures = sorted(path.name for path in tmp_path.iterdir())
    assert len(captures) == done.stdout.count("bytes: all match") > 1, captures
    assert not [name for name in captures if ".rank" in name]


@needs_mpirun
def test_another_number_of_ranks_is_refused_at_once() -> None:
    done = mpirun(3, "incast", "--ranks", "4")
    assert done.returncode != 0
    assert "polyroce: --ranks 4: mpirun started 3, which is allowed here" in done.stderr


def test_torchruns_variables_start_the_ranks(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    processes = ended(torchrun(4, "moe-alltoall", "--set", "tokens=32", "--json", str(result)))
    assert [status for status, _, _ in processes] == [0] * 4, processes
    assert ["PASSED" in out for _, out, _ in processes] == [True, False, False, False]
    metrics = json.loads(result.read_text())["variants"][0]["metrics"]
    assert metrics["bytes_wrong"] == 0


def test_a_failed_expectation_is_everyones_exit_status() -> None:
    processes = ended(torchrun(2, "pair", "--set", "expect.paths_used={max=0}"))
    assert [status for status, _, _ in processes] == [1, 1], processes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("incast", "--on", "loopback"), "--on loopback: the ranks that torchrun started can only meet over udp"),
        (("incast", "--ranks", "9"), "--ranks 9: torchrun started 2, which is allowed here"),
        (("nonsense",), "scenario 'nonsense' is unknown"),
        (("m2n",), "workload.ranks = .*: torchrun started 2, which is allowed here"),
    ],
)
def test_bad_input_ends_all_ranks(arguments: tuple[str, ...], message: str) -> None:
    (status, _, errors), (other, _, others) = ended(torchrun(2, *arguments))
    assert status == 2
    assert re.search(message, errors)
    assert other == 1
    assert "rank 0 ended before it had a verdict" in others


def test_a_rank_that_is_killed_ends_all() -> None:
    processes = torchrun(3, "incast", *LONG)
    deadline = time.monotonic() + 60
    assert processes[0].stderr is not None
    for line in processes[0].stderr:  # it says which phase begins
        assert time.monotonic() < deadline
        if "incast" in line:
            break
    processes[2].send_signal(signal.SIGKILL)
    (first, _, errors), (second, _, others), (third, _, _) = ended(processes)
    assert (first, second, third) == (1, 1, -signal.SIGKILL)
    assert "rank 2" in errors
    assert "rank 0 ended before it had a verdict" in others


def test_without_the_launcher_a_process_is_alone() -> None:
    [(status, out, errors)] = ended(torchrun(2, "pair", "--launcher", "off", ranks=range(1, 2)))
    assert status == 0, errors
    assert "PASSED" in out


def test_wrong_variables_are_named() -> None:
    done = subprocess.run(
        [*POLYROCE, "run", "pair"], env=environment(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1"),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("polyroce: MASTER_PORT is not set")


# Addresses of ranks on several machines


def group(*addresses: tuple[str, ...], local: int = 0) -> Group:
    size = len(addresses)
    return Group(World(0, size, local, "node1", 29500, "srun"), {}, list(addresses))


def test_ranks_of_one_machine_use_the_loopback_network() -> None:
    assert launched.addresses(group(("127.0.0.1",), ("127.0.0.1",), local=2), 2, 2) == ()


def test_ranks_of_several_machines_use_their_own() -> None:
    found = launched.addresses(group(("10.0.0.1", "10.1.0.1"), ("10.0.0.2", "10.1.0.2", "10.2.0.2")), 2, 2)
    assert found == (("10.0.0.1", "10.1.0.1"), ("10.0.0.2", "10.1.0.2"))


@pytest.mark.parametrize(
    ("addresses", "ports", "message"),
    [
        ((("10.0.0.1",), ("10.0.0.1",)), 1, "ranks 0, 1 all have the address 10.0.0.1: POLYROCE_ADDRESS must give"),
        ((("10.0.0.1",), ("10.0.0.2",)), 2, "transport.ports = 2, but rank 0 has the addresses 10.0.0.1"),
    ],
)
def test_addresses_that_will_not_do_are_named(addresses: Any, ports: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        launched.addresses(group(*addresses), 2, ports)


def test_a_peer_of_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its refusal was one for the peer; it has to reach the user as well."""

    def join(world: object, **more: object) -> None:
        raise Refusal("rank 0", "version: 1 here, 2 at the peer")

    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "20000")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launched.Group, "join", join)
    with (
        pytest.raises(NegotiationError, match=r"rank 1 of 2 of torchrun: rank 0: version: 1 here, 2 at the peer"),
        launched.joined(True),
    ):
        pass

"""perf over real sockets: every operation, both kinds of measurement, both ways to start it."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.perf.plan import ALL, Plan
from testbed.processes import rank_environment
from transport.errors import NegotiationError

pytestmark = pytest.mark.xdist_group("ports")


def measure(tmp_path: Path, *arguments: str) -> tuple[Any, dict[str, Any]]:
    out = tmp_path / "perf.json"
    result = CliRunner().invoke(app, ["perf", "--local", "--duration", "0.05", "--json", str(out), *arguments])
    assert result.exit_code == 0, result.output
    return result, json.loads(out.read_text())


@pytest.mark.parametrize("op", ["write", "write_imm", "send", "read"])
def test_bandwidth_of_every_operation(tmp_path: Path, op: str) -> None:
    shown, result = measure(tmp_path, "--op", op, "--size", "20000", "--qps", "2")
    (row,) = result["rows"]
    assert result["passed"]
    assert row["bytes_match"]
    assert row["messages"] > 0
    assert row["goodput_gbps"] == pytest.approx(row["messages_per_s"] * 20000 * 8e-9)
    assert row["latency_p50_us"] is None
    assert "#bytes  #iterations   BW average[Gb/sec]   MsgRate[Mpps]" in shown.stdout
    assert "0.00 " not in shown.stdout


def test_latency_has_percentiles_of_half_round_trips(tmp_path: Path) -> None:
    shown, result = measure(tmp_path, "--latency")
    (row,) = result["rows"]
    assert row["size_bytes"] == 64
    assert 0 < row["latency_p50_us"] <= row["latency_p99_us"] <= row["latency_p999_us"]
    assert row["goodput_gbps"] is None
    assert re.search(r"#bytes +#iterations +P50\[usec\] +P99\[usec\] +P99\.9\[usec\]", shown.stdout)


def test_other_settings_are_used(tmp_path: Path) -> None:
    _, result = measure(
        tmp_path, "--icrc", "off", "--mtu", "1024", "--paths", "3", "--selector", "round_robin", "--cc", "fixed"
    )
    assert (result["icrc"], result["mtu_bytes"], result["paths"], result["cc"]) == (False, 1024, 3, "fixed")


@pytest.mark.parametrize("arguments", [("--op", "write"), ("--op", "read"), ("--latency",)])
def test_sockets_that_asyncio_moves(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    _, result = measure(tmp_path, "--nic", "dgram", *arguments)
    assert (result["on"], result["cc"]) == ("dgram", "swift")
    assert result["rows"][0]["bytes_match"]


def test_a_sweep_has_a_row_for_every_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert ALL[0] == 2
    assert ALL[-1] == 8 << 20
    monkeypatch.setattr("testbed.perf.plan.ALL", (2, 4096, 70000))
    _, result = measure(tmp_path, "--size", "all")
    assert [row["size_bytes"] for row in result["rows"]] == [2, 4096, 70000]
    assert all(row["bytes_match"] for row in result["rows"])


def test_a_server_and_a_client_that_finds_it() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        port = str(probe.getsockname()[1])
    base = [sys.executable, "-P", "-m", "testbed", "perf", "--port", port]
    server = subprocess.Popen(
        [*base, "--server", "--bind", "127.0.0.2"], env=rank_environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        client = subprocess.run(
            [*base, "127.0.0.2", "--bind", "127.0.0.1", "--duration", "0.05"],
            env=rank_environment(), capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        text, _ = server.communicate(timeout=60)
    finally:
        server.kill()
        server.wait()
    assert client.returncode == 0, client.stderr
    assert "65536" in client.stdout
    assert server.returncode == 0
    assert "serving 127.0.0.1" in text


def test_no_server_is_there() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        port = str(probe.getsockname()[1])
        result = CliRunner().invoke(app, ["perf", "127.0.0.2", "--port", port])
    assert result.exit_code == 2
    assert "cannot connect to 127.0.0.2" in result.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op": "steal"}, "plan: op = 'steal'"),
        ({"sizes": [0]}, "plan: size = 0"),
        ({"sizes": "64"}, "plan: sizes = '64' is not allowed"),
        ({"qps": True}, "plan: qps = True is not allowed"),
        ({"qps": 10**9}, "plan: qps = 1000000000"),
        ({"mtu": 1500}, "plan: mtu = 1500"),
        ({"nic": "tcp"}, "plan: nic = 'tcp': allowed are udp, dgram"),
        ({"wings": 2}, "plan: wings = 2 is unknown here"),
    ],
)
def test_a_server_refuses_a_plan_it_cannot_follow(change: dict[str, Any], message: str) -> None:
    with pytest.raises(NegotiationError, match=message):
        Plan.from_json({**Plan().to_json(), "sizes": [64], **change}, "dctcp")


def test_a_server_uses_its_own_control_and_never_a_file_the_client_names() -> None:
    told = {**Plan().to_json(), "sizes": [64], "cc": "/tmp/evil.py:Evil"}
    assert Plan.from_json(told, "fixed").cc == "fixed"


def test_a_plan_with_something_missing_is_refused() -> None:
    told = {**Plan().to_json(), "sizes": [64]}
    del told["depth"]
    with pytest.raises(NegotiationError, match="plan: depth missing"):
        Plan.from_json(told, "dctcp")


def test_the_pipeline_is_kept_full_and_memory_bounded() -> None:
    assert Plan().outstanding(64) == 128
    assert Plan().outstanding(1 << 20) == 16
    assert Plan().outstanding(1 << 30) == 2
    assert Plan(depth=5).outstanding(1 << 30) == 5

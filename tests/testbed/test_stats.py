"""State dumps of real processes: asked for while data flows, by signal, and of processes that must not be signalled."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from testbed import stats
from testbed.cli import app
from testbed.dump import Dump
from testbed.processes import rank_environment
from testbed.stats import StatsError, ask
from transport import telemetry
from transport.telemetry import registry

pytestmark = pytest.mark.xdist_group("ports")

LIMIT = 64
ROOT = Path(__file__).resolve().parent.parent.parent


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process of this project; it does not outlive the test."""
    process = subprocess.Popen(
        [sys.executable, "-P", *arguments],
        env=rank_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def perf(tmp_path: Path, *more: str) -> tuple[str, ...]:
    out = str(tmp_path / "perf.json")
    return ("-m", "testbed", "perf", "--local", "--duration", "3", "--json", out, *more)


def eventually(condition: Callable[[], Any], process: subprocess.Popen[str]) -> Any:
    """The first true value of `condition` while the process runs."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"it never happened: {process.poll()}, {process.communicate(timeout=5)}")


def askable(pid: int) -> bool:
    return (registry(os.geteuid()) / f"{pid}.json").exists()


def children(pid: int) -> list[int]:
    return [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]


def moving(pid: int, process: subprocess.Popen[str]) -> Dump:
    """The first dump of `pid` in which its endpoint has placed or sent data."""

    def busy() -> Dump | None:
        if not askable(pid):
            return None
        dump = ask(pid, LIMIT)
        counters = dump.endpoints[0].counters if dump.endpoints else {}
        return dump if counters.get("data_packets_sent", 0) + counters.get("bytes_placed", 0) > 0 else None

    found = eventually(busy, process)
    assert isinstance(found, Dump)
    return found


# While data flows


def test_both_ends_of_a_transfer_tell_their_state_and_are_not_harmed(tmp_path: Path) -> None:
    with running(*perf(tmp_path, "--qps", "3", "--size", "64KiB")) as process:
        first = moving(process.pid, process)
        (server,) = children(process.pid)
        other = moving(server, process)
        second = eventually(lambda: ask(process.pid, LIMIT), process)
        assert process.wait(60) == 0
    assert json.loads((tmp_path / "perf.json").read_text())["passed"]
    assert (first.pid, other.pid) == (process.pid, server)
    assert [dump.endpoints[0].name for dump in (first, other)] == ["perf client", "perf server"]
    assert second.serial > first.serial
    assert second.endpoints[0].counters["data_packets_sent"] > first.endpoints[0].counters["data_packets_sent"]
    assert second.endpoints[0].nic["sent"] > first.endpoints[0].nic["sent"]
    connections = second.endpoints[0].connections
    assert (connections.count, connections.by_state) == (3, {"RTS": 3})
    assert {connection.qpn for connection in connections.listed} == {
        connection.peer_qpn for connection in other.endpoints[0].connections.listed
    }
    assert not askable(process.pid)
    assert not askable(server)


def test_ranks_of_a_run_can_be_asked_while_they_sleep() -> None:
    slow = [f"--set={setting}" for setting in ("messages=40", "size=64", "interval_us=100000")]
    with running("-m", "testbed", "run", "pair", *slow) as process:

        def both() -> list[int]:
            ranks = [pid for pid in children(process.pid) if askable(pid)]
            return ranks if len(ranks) == 2 else []

        ranks = eventually(both, process)
        dumps = [moving(pid, process) for pid in ranks]
        assert process.wait(60) == 0
    assert sorted(dump.endpoints[0].name for dump in dumps) == ["rank 0", "rank 1"]


def test_a_hundred_signals_in_a_row_print_whole_dumps_and_do_no_harm(tmp_path: Path) -> None:
    with running(*perf(tmp_path)) as process:
        moving(process.pid, process)
        for _ in range(100):
            os.kill(process.pid, signal.SIGUSR1)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0
    assert json.loads((tmp_path / "perf.json").read_text())["passed"]
    dumps = [Dump.model_validate_json(line) for line in errors.splitlines() if line.startswith("{")]
    assert 1 <= len(dumps) <= 100
    serials = [dump.serial for dump in dumps]
    assert serials == sorted(set(serials))


def test_an_asyncio_program_answers_while_it_has_nothing_to_do() -> None:
    program = """
import asyncio
from transport import telemetry
from transport.api.aio import Device

async def main():
    loop = asyncio.get_running_loop()
    async with Device("127.0.0.1") as device:
        with telemetry.install(device.driver, "mine", wake=lambda: loop.call_soon_threadsafe(device.kick)):
            print("ready", flush=True)
            await asyncio.to_thread(input)

asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program], env=rank_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        dump = ask(process.pid, LIMIT)
        process.communicate("\n", timeout=30)
    assert process.returncode == 0
    assert [endpoint.name for endpoint in dump.endpoints] == ["mine"]
    assert dump.endpoints[0].addresses == ["127.0.0.1"]


# The command


def test_the_command_shows_tables_or_json(tmp_path: Path) -> None:
    with running(*perf(tmp_path)) as process:
        moving(process.pid, process)
        shown = CliRunner().invoke(app, ["stats", str(process.pid)])
        told = CliRunner().invoke(app, ["stats", str(process.pid), "--json", "--limit", "0"])
        assert process.wait(60) == 0
    assert shown.exit_code == 0, shown.output
    for text in ("perf client", "data_packets_sent", "1 RTS", "peer 127.0.0.2", "usable paths", "dctcp", "srtt"):
        assert text in shown.stdout
    dump = Dump.model_validate_json(told.stdout)
    connections = dump.endpoints[0].connections
    assert (connections.count, connections.listed, connections.left_out) == (1, [], 1)


def test_a_process_that_does_not_exist(tmp_path: Path) -> None:
    with running("-c", "pass") as process:
        process.wait(30)
    for pid in (process.pid, 0, -1, 1 << 40):
        with pytest.raises(StatsError, match=f"process {pid}: there is none"):
            ask(pid, LIMIT)
    result = CliRunner().invoke(app, ["stats", str(process.pid)])
    assert (result.exit_code, result.stderr) == (2, f"polyroce: process {process.pid}: there is none\n")


def test_a_strange_process_is_told_apart_and_lives_on() -> None:
    with running("-c", "import time; print('up', flush=True); time.sleep(60)") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        with pytest.raises(StatsError, match=f"process {process.pid} cannot be asked.*it was not signalled"):
            ask(process.pid, LIMIT)
        time.sleep(0.05)
        assert process.poll() is None


def test_what_a_dead_process_left_does_not_endanger_a_later_one_with_its_number(tmp_path: Path) -> None:
    with running("-c", "import time; print('up', flush=True); time.sleep(60)") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        folder = registry(os.geteuid())
        folder.mkdir(mode=0o700, exist_ok=True)
        left = folder / f"{process.pid}.json"
        left.write_text(json.dumps({"pid": process.pid, "start": 1, "name": "a rank of long ago"}))
        with pytest.raises(StatsError, match="cannot be asked"):
            ask(process.pid, LIMIT)
        assert process.poll() is None
        with running(*perf(tmp_path)) as other:  # the next that says something cleans up
            moving(other.pid, other)
            assert not left.exists()


def test_what_an_earlier_process_with_the_same_number_left_is_taken_away_first() -> None:
    done = script(
        "import pathlib\nfolder = telemetry.registry(os.geteuid())\nfolder.mkdir(mode=0o700, exist_ok=True)\n"
        "def files():\n    return sorted(path.suffix for path in folder.glob(f'{os.getpid()}.*'))\n"
        "for name in (f'{os.getpid()}.state', f'{os.getpid()}.ask', f'{1 << 30}.state'):\n"
        "    (folder / name).write_text('{\"serial\": 50}')\n"
        "installed = telemetry.install(driver, 'a')\nprint(files(), (folder / f'{1 << 30}.state').exists())\n"
        "installed.close()\nprint(files())"
    )
    assert (done.stdout, done.stderr) == ("['.json'] False\n[]\n", "")


def test_a_stopped_process_is_given_up_in_time_and_goes_on_afterwards(tmp_path: Path) -> None:
    with running(*perf(tmp_path)) as process:
        moving(process.pid, process)
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(StatsError, match=f"process {process.pid}: no answer within 0.2 s"):
            ask(process.pid, LIMIT, patience=0.2)
        process.send_signal(signal.SIGCONT)
        assert ask(process.pid, LIMIT).pid == process.pid
        assert process.wait(60) == 0
    assert json.loads((tmp_path / "perf.json").read_text())["passed"]


def test_a_process_that_dies_instead_of_answering(tmp_path: Path) -> None:
    with running(*perf(tmp_path)) as process:
        moving(process.pid, process)
        process.send_signal(signal.SIGSTOP)
        killer = subprocess.Popen([sys.executable, "-c", f"import os,time; time.sleep(0.2); os.kill({process.pid}, 9)"])
        with pytest.raises(StatsError, match=f"process {process.pid} ended before it answered"):
            ask(process.pid, LIMIT, patience=30)
        killer.wait(30)


# The installing side

QUIET = """
import os, random, signal, sys
from transport import telemetry
from transport.config import EndpointConfig
from transport.driver import Driver
from transport.endpoint import Endpoint
from transport.nic.loopback import LoopbackNic, Network

nic = LoopbackNic(Network(10**10, 10**6), bytes([10, 0, 0, 1]))
driver = Driver(Endpoint(EndpointConfig(), nic.address, nic.caps, random.Random(1)), nic)
"""


def script(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", QUIET + text], env=rank_environment(), capture_output=True, text=True, timeout=60
    )


def test_after_the_last_endpoint_is_taken_out_the_signal_is_ignored() -> None:
    done = script(
        "with telemetry.install(driver, 'a'), telemetry.install(driver, 'b'):\n    pass\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\nprint('alive')"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


def test_a_process_that_ends_without_closing_leaves_nothing_and_survives_signals_on_its_way_out() -> None:
    done = script(
        "telemetry.install(driver, 'a')\n"
        "class Last:\n"
        "    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGUSR1):\n        kill(pid, number)\n"
        "last = Last()\nprint(os.getpid())"
    )
    assert done.returncode == 0
    assert list(registry(os.geteuid()).glob(f"{done.stdout.strip()}.*")) == []


def test_a_dump_waits_for_the_next_turn_and_is_made_once() -> None:
    done = script(
        "telemetry.install(driver, 'a')\n"
        "for _ in range(3): os.kill(os.getpid(), signal.SIGUSR1)\n"
        "print('before', flush=True)\nsys.stderr = sys.stdout\n"
        "driver.turn()\ndriver.turn()\n"
    )
    assert done.stdout == "before\n"
    (line,) = done.stderr.splitlines()
    assert Dump.model_validate_json(line).endpoints[0].name == "a"


def test_a_fault_of_the_picture_is_told_and_goes_no_further() -> None:
    done = script(
        "telemetry.install(driver, 'a')\ndriver.endpoint.peers = {1: None}\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\ndriver.turn()\nprint('alive')"
    )
    assert done.stdout == "alive\n"
    dump = Dump.model_validate_json(done.stderr)
    assert dump.endpoints == []
    assert dump.failure
    assert "AttributeError" in dump.failure


@pytest.mark.parametrize(
    "make", ["folder.mkdir(); folder.chmod(0o755)", "folder.write_text('')", "folder.symlink_to('/')"]
)
def test_a_folder_that_is_not_this_users_alone_is_not_used(tmp_path: Path, make: str) -> None:
    done = script(
        f"import pathlib\nfolder = pathlib.Path({str(tmp_path / 'registry')!r})\n{make}\n"
        "telemetry.registry = lambda uid: folder\ntelemetry.install(driver, 'a')\n"
        "print(folder.is_dir() and not folder.is_symlink() and list(folder.iterdir()))\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\ndriver.turn()\n"
        "assert not folder.is_dir() or folder.is_symlink() or not list(folder.iterdir())\n"
    )
    assert done.returncode == 0
    assert done.stdout in ("[]\n", "False\n")
    assert len(done.stderr.splitlines()) == 1


def test_a_link_in_a_folder_that_others_may_write_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    done = script(
        f"import pathlib\nfolder = pathlib.Path({str(tmp_path / 'registry')!r})\nfolder.mkdir()\nfolder.chmod(0o777)\n"
        f"(folder / f'{{os.getpid()}}.state.part').symlink_to({str(victim)!r})\n"
        "telemetry.registry = lambda uid: folder\ntelemetry.install(driver, 'a')\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\ndriver.turn()\n"
    )
    assert done.returncode == 0
    assert victim.read_text() == "untouched"


def test_only_the_main_thread_can_install() -> None:
    done = script(
        "import threading\nfrom transport.errors import ConfigError\n"
        "def other():\n    try:\n        telemetry.install(driver, 'a')\n    except ConfigError as error:\n"
        "        print(error)\n"
        "thread = threading.Thread(target=other)\nthread.start()\nthread.join()\n"
    )
    assert done.stdout == "telemetry: only the main thread can install it, as with every signal\n"


# The schema


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """All leaves of a model by their paths; [] stands for the items of a list."""
    for name, field in model.model_fields.items():
        nested, path = field.annotation, f"{prefix}{name}"
        for argument in typing.get_args(nested):
            if isinstance(argument, type) and issubclass(argument, BaseModel):
                nested = argument
                path += "[]" if typing.get_origin(field.annotation) is list else ""
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            yield from fields(nested, f"{path}.")
        else:
            yield path


def test_the_document_lists_exactly_the_fields_that_are_there() -> None:
    text = (ROOT / "docs" / "observing.md").read_text(encoding="utf-8")
    part = text.partition("## Schema")[2].partition("\n## ")[0]
    prefix, told = "", []
    for line in part.splitlines():
        if match := re.match(r"### .*`(.*)`", line):
            prefix = match[1] + "."
        elif line.startswith("### "):
            prefix = ""
        elif line.startswith("| `"):
            told += [prefix + name for name in re.findall(r"`([^`]+)`", line.split("|")[1])]
    assert sorted(told) == sorted(fields(Dump))


def test_a_dump_of_another_version_is_refused() -> None:
    with pytest.raises(StatsError, match="process 7: its dump has schema version 99, 1 is known here"):
        stats._parse(7, json.dumps({"version": 99}))
    assert telemetry.SCHEMA == 1


def test_a_dump_that_is_not_of_the_schema_is_refused_by_the_name_of_the_field() -> None:
    data = {"version": 1, "pid": 7, "serial": 1, "time_s": 1.0, "failure": None, "endpoints": [], "mood": "fine"}
    with pytest.raises(StatsError, match="process 7: its dump is not of the schema: mood: Extra inputs"):
        stats._parse(7, json.dumps(data))

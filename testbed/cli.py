"""The command line. Bad input: one message on standard error, exit status 2. A run that failed: exit status 1."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cc import registry
from cc.errors import ControlError
from testbed import launched, report, runner, scenario, stats
from testbed.errors import RunError
from testbed.perf import client, server
from testbed.perf.plan import OPERATIONS, Plan
from testbed.progress import Bars
from testbed.record.recorder import RecordPlan
from transport.bootstrap import PORT
from transport.errors import ConfigError, PolyroceError
from transport.nic.dgram import SOCKETS
from transport.snapshot import LIMIT

app = typer.Typer(
    name="polyroce",
    help="Userspace multipath RoCE transport: runs scenarios and measures.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


_JSON = typer.Option("--json", metavar="FILE", help="Write the result; - prints it.")


class Switch(StrEnum):
    on = "on"
    off = "off"


class Launcher(StrEnum):
    auto = "auto"
    off = "off"


def _console(stderr: bool = False) -> Console:
    """Wide enough for the tables where nobody said how wide it is."""
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, width=None if terminal else 160, highlight=False, markup=False)


@contextmanager
def _errors_told() -> Iterator[None]:
    """Turns the project's own errors into a message and an exit status."""
    try:
        yield
    except RunError as error:
        typer.echo(f"polyroce: run failed: {error}", err=True)
        raise typer.Exit(1) from None
    except (PolyroceError, ControlError) as error:
        typer.echo(f"polyroce: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo("polyroce: interrupted", err=True)
        raise typer.Exit(130) from None


def _version(wanted: bool) -> None:
    if wanted:
        mode = "compiled" if report.compiled() else "interpreted"
        typer.echo(f"polyroce {report.installed_version()} {mode}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say version and mode.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    which: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A scenario by name, or a .toml file.")],
    on: Annotated[str, typer.Option("--on", help="Network: udp, dgram, loopback or sim.")] = "udp",
    ranks: Annotated[int | None, typer.Option(help="Number of ranks.")] = None,
    cc: Annotated[str | None, typer.Option("--cc", help="Congestion control: a name or FILE.py:CLASS.")] = None,
    selector: Annotated[str | None, typer.Option(help="Path selector.")] = None,
    paths: Annotated[int | None, typer.Option(help="Number of paths.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change any key.")] = None,
    json_file: Annotated[Path | None, _JSON] = None,
    pcap: Annotated[Path | None, typer.Option(metavar="FILE", help="Capture what is sent.")] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="DIR", help="On sim: write what goes on as Parquet files.")
    ] = None,
    record_every: Annotated[
        float, typer.Option(metavar="US", help="Virtual time from one sample of a recording to the next.")
    ] = 10.0,
    launcher: Annotated[
        Launcher, typer.Option(help="auto: be one of the ranks if mpirun, torchrun or srun started this.")
    ] = Launcher.auto,
) -> None:  # fmt: skip
    """Run a scenario and judge it. Exit status 0 only if all bytes match and all expectations hold."""
    with _errors_told(), launched.joined(launcher is Launcher.auto) as group:
        if group is not None and group.world.rank:
            passed = launched.follow(group)
        else:
            launched.check(group, on, ranks, pcap is not None)
            given = [
                f"{key}={json.dumps(value)}"
                for key, value in (
                    ("workload.ranks", ranks), ("transport.cc", cc), ("transport.selector", selector),
                    ("transport.paths", paths), ("seed", seed),
                )
                if value is not None
            ]  # fmt: skip
            chosen = scenario.load(which, [*(settings or []), *given])
            if group is not None and ranks is None and launched.sizable(chosen):
                chosen = scenario.load(which, [*(settings or []), *given, f"workload.ranks={group.world.size}"])
            plan = None if record is None else RecordPlan.of(record, record_every)
            quiet = json_file is not None and str(json_file) == "-"
            with Bars(_console(stderr=True)) as bars:
                result = runner.run(chosen, on, bars, str(pcap or ""), group, plan)
            if group is not None:
                launched.tell(group, result.passed)
            report.show(result, _console(stderr=quiet))
            if json_file is not None:
                report.write_json(json_file, result.to_json())
            passed = result.passed
    raise typer.Exit(0 if passed else 1)


@app.command("list")
def list_scenarios(as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """List the scenarios that come with the package."""
    with _errors_told():
        found = scenario.known()
        if as_json:
            typer.echo(json.dumps([{"name": name, "summary": summary} for name, summary in found.items()], indent=2))
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("scenario", no_wrap=True)
        table.add_column("what it shows")
        for name, summary in found.items():
            table.add_row(name, summary)
        _console().print(table)


@app.command("cc")
def show_cc(
    name: Annotated[str | None, typer.Argument(help="One of them, or FILE.py:CLASS.")] = None,
) -> None:
    """List the congestion controls; with NAME, its parameters, ranges, units and source."""
    with _errors_told():
        console = _console()
        table = Table(box=None, pad_edge=False, header_style="bold")
        if name is None:
            for title in ("control", "summary", "needs", "source"):
                table.add_column(title, no_wrap=title == "control")
            for known in registry.names():
                control = registry.resolve(known)
                table.add_row(known, control.summary, ", ".join(sorted(control.needs)) or "-", control.source)
            console.print(table)
            return
        control = registry.resolve(name)
        console.print(f"{control.name or name}: {control.summary}")
        console.print(f"source: {control.source or 'not given'}")
        console.print(f"needs: {', '.join(sorted(control.needs)) or 'nothing'}")
        rows = registry.describe(control)
        if not rows:
            console.print("no parameters")
            return
        for title in ("parameter", "default", "least", "most", "unit", "meaning"):
            table.add_column(
                title,
                no_wrap=title != "meaning",
                justify="left" if title in ("parameter", "unit", "meaning") else "right",
            )
        for row in rows:
            table.add_row(row.name, f"{row.default:g}", f"{row.low:g}", f"{row.high:g}", row.unit, row.meaning)
        console.print(table)


@app.command("stats")
def show_stats(
    pid: Annotated[int, typer.Argument(metavar="PID", help="A rank, a perf, or a program with an endpoint.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="Most connections, peers, and paths of a peer to list.")] = LIMIT,
    timeout: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for the answer.")] = stats.PATIENCE,
) -> None:  # fmt: skip
    """Show the state of a running process: counters, connections, paths, congestion control."""
    with _errors_told():
        dump = stats.ask(pid, limit, timeout)
        if as_json:
            typer.echo(dump.model_dump_json(indent=2))
        else:
            stats.show(dump, _console())


@app.command()
def wireshark() -> None:
    """Print where the Lua dissector for Wireshark and tshark lies: tshark -X lua_script:FILE, or copy it to a plug-in
    folder."""
    typer.echo(resources.files("testbed").joinpath("wireshark", "polyroce.lua"))


@app.command()
def perf(
    host: Annotated[str | None, typer.Argument(metavar="[HOST]", help="Where a server waits.")] = None,
    as_server: Annotated[bool, typer.Option("--server", help="Wait for one client.")] = False,
    local: Annotated[bool, typer.Option("--local", help="Run both ends here, on 127.0.0.1 and 127.0.0.2.")] = False,
    bind: Annotated[str, typer.Option(metavar="ADDR", help="Own address, if not the one that reaches the peer.")] = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port on which both meet.")] = PORT,
    op: Annotated[str, typer.Option(help=f"One of {', '.join(OPERATIONS)}.")] = "write",
    size: Annotated[str, typer.Option(help="Message size, such as 64, 64KiB, 1MiB; all for a sweep.")] = "",
    duration: Annotated[float | None, typer.Option(help="Seconds for each size; 2, or 0.5 with all.")] = None,
    qps: Annotated[int, typer.Option(help="Queue pairs.")] = 1,
    paths: Annotated[int, typer.Option(help="Paths.")] = 16,
    selector: Annotated[str, typer.Option(help="Path selector.")] = Plan.selector,
    cc: Annotated[str | None, typer.Option("--cc", help="Congestion control: a name or FILE.py:CLASS.")] = None,
    mtu: Annotated[int, typer.Option(help="Payload bytes of a packet.")] = 4096,
    icrc: Annotated[Switch, typer.Option(help="Checksum of every packet.")] = Switch.on,
    latency: Annotated[bool, typer.Option("--latency", help="Half round trip instead of bandwidth.")] = False,
    depth: Annotated[int, typer.Option(help="Messages outstanding on a queue pair; 0 fills the pipeline.")] = 0,
    max_run: Annotated[int, typer.Option(help="Most packets of one send on one path.")] = Plan.max_run,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 1,
    nic: Annotated[str, typer.Option(help=f"Sockets of both ends: {' or '.join(SOCKETS)}.")] = Plan.nic,
    json_file: Annotated[Path | None, _JSON] = None,
    pcap: Annotated[Path | None, typer.Option(metavar="FILE", help="Capture what it sends and receives.")] = None,
) -> None:  # fmt: skip
    """Measure bandwidth, or latency, between two endpoints over UDP sockets."""
    with _errors_told():
        if (host is not None) + as_server + local != 1:
            raise ConfigError("perf: give one of --server, HOST, --local")
        plan = Plan.make(
            op=op, size=size, duration=duration, qps=qps, paths=paths, selector=selector, cc=cc, mtu=mtu,
            icrc=icrc is Switch.on, latency=latency, depth=depth, max_run=max_run, seed=seed, nic=nic,
        )  # fmt: skip
        quiet = json_file is not None and str(json_file) == "-"
        console = _console(stderr=quiet)
        if as_server:
            server.serve(bind, port, plan, console, str(pcap or ""))
            return
        with client.local_server(plan) if local else nullcontext() as channel:
            result = client.run(host, port, bind, plan, console, channel, str(pcap or ""))
        if json_file is not None:
            report.write_json(json_file, result)
    raise typer.Exit(0 if result["passed"] else 1)


def main() -> None:
    """The console script."""
    app()

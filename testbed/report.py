"""The result of a run: as JSON, and as lines for people."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import transport.packet
from testbed.metrics import PhaseRecord, Verdict, summarize
from testbed.units import show_bytes, show_us
from transport.errors import ConfigError

#: Metrics of a single phase that its row in the JSON has.
PHASE_METRICS = (
    "messages", "logical_bytes", "wire_bytes", "packets", "retransmits", "duration_us", "ideal_us", "goodput_gbps",
    "latency_p50_us", "latency_p99_us", "latency_cv", "tail_fct_us", "paths_used", "bytes_wrong",
)  # fmt: skip


def installed_version() -> str:
    """The version of the distribution; in a source tree that was not installed, what pyproject.toml says."""
    try:
        return version("polyroce")
    except PackageNotFoundError:
        project = Path(__file__).resolve().parent.parent / "pyproject.toml"
        return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])


def compiled() -> bool:
    """Whether the hot modules run as extension modules."""
    return not str(transport.packet.__file__).endswith(".py")


@dataclass
class VariantResult:
    """What one variant came to. notes: lines for people."""

    name: str
    phases: list[PhaseRecord]
    metrics: dict[str, float | None]
    expect: list[Verdict]
    notes: list[str]
    rate: int | None
    mtu: int

    @property
    def passed(self) -> bool:
        return not self.metrics["bytes_wrong"] and all(verdict.passed is not False for verdict in self.expect)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "passed": self.passed,
            "expect": [
                {"name": item.name, "value": item.value, "limit": dict(item.limit), "passed": item.passed}
                for item in self.expect
            ],
            "phases": [self._phase(phase) for phase in self.phases],
            "metrics": self.metrics,
        }

    def _phase(self, phase: PhaseRecord) -> dict[str, Any]:
        values = summarize([phase], self.rate, self.mtu)
        hottest, share = hot(phase)
        return {
            "name": phase.name,
            **{name: values[name] for name in PHASE_METRICS},
            "hottest_rank": hottest,
            "hottest_share_percent": share,
            "hottest_port": phase.hot_port,
        }


@dataclass
class RunResult:
    """A whole run. The first variant stands for it."""

    scenario: str
    on: str
    seed: int
    variants: list[VariantResult]

    @property
    def passed(self) -> bool:
        return all(variant.passed for variant in self.variants)

    def to_json(self) -> dict[str, Any]:
        variants = [variant.to_json() for variant in self.variants]
        first = variants[0]
        return {
            "scenario": self.scenario,
            "on": self.on,
            "seed": self.seed,
            "version": installed_version(),
            "compiled": compiled(),
            "passed": self.passed,
            "expect": first["expect"],
            "phases": first["phases"],
            "variants": variants,
            "metrics": first["metrics"],
        }


def hot(phase: PhaseRecord) -> tuple[int | None, float | None]:
    """The rank that received most, and its share of all bytes in percent."""
    total = int(phase.received.sum())
    if not total:
        return None, None
    return int(np.argmax(phase.received)), 100.0 * int(phase.received.max()) / total


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a result; "-" is standard output."""
    text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    if str(path) == "-":
        print(text, end="")
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json {path}: cannot be written: {error.strerror}") from None


def show(result: RunResult, console: Console) -> None:
    """Print a run: its phases as a table, then metrics, expectations and the verdict."""
    mode = "compiled" if compiled() else "interpreted"
    console.print(f"{result.scenario} on {result.on}, seed {result.seed}, polyroce {installed_version()} {mode}")
    for variant in result.variants:
        console.print()
        if len(result.variants) > 1:
            console.print(f"variant {variant.name}", style="bold")
        _show_phases(variant, console)
        for note in variant.notes:
            console.print(note)
        _show_metrics(variant.metrics, console)
        wrong = [text for phase in variant.phases for text in phase.wrong]
        for text in wrong[:10]:
            console.print(f"WRONG BYTES: {text}", style="bold red")
        for verdict in variant.expect:
            _show_verdict(verdict, console)
        console.print(f"bytes: {'all match' if not wrong else f'{len(wrong)} streams are wrong'}")
    console.print(f"{'PASSED' if result.passed else 'FAILED'}", style="bold green" if result.passed else "bold red")


_COLUMNS: Sequence[tuple[str, Callable[[Mapping[str, Any]], str]]] = (
    ("logical", lambda row: show_bytes(row["logical_bytes"])),
    ("wire", lambda row: show_bytes(row["wire_bytes"])),
    ("duration", lambda row: show_us(row["duration_us"])),
    ("ideal", lambda row: show_us(row["ideal_us"])),
    ("hottest", lambda row: "-" if row["hottest_rank"] is None else f"rank {row['hottest_rank']}"),
    ("share", lambda row: _number(row["hottest_share_percent"], "{:.1f} %")),
    ("resent", lambda row: str(row["retransmits"])),
    ("paths", lambda row: _number(row["paths_used"], "{}")),
    ("P50", lambda row: show_us(row["latency_p50_us"])),
    ("P99", lambda row: show_us(row["latency_p99_us"])),
    ("CV", lambda row: _number(row["latency_cv"], "{:.3f}")),
)


def _show_phases(variant: VariantResult, console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("phase", no_wrap=True)
    for title, _ in _COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    rows = variant.to_json()["phases"]
    ports = any(row["hottest_port"] is not None for row in rows)
    if ports:
        table.add_column("busiest port", no_wrap=True)
    for row in rows:
        table.add_row(
            row["name"], *(text(row) for _, text in _COLUMNS), *([row["hottest_port"] or "-"] if ports else [])
        )
    console.print(table)


def _show_metrics(values: Mapping[str, Any], console: Console) -> None:
    console.print(
        f"total: {values['messages']} messages, {show_bytes(values['logical_bytes'])} in "
        f"{show_us(values['duration_us'])}, {_number(values['goodput_gbps'], '{:.3f} Gbit/s')}, "
        f"{values['packets']} data packets, {values['retransmits']} sent again"
    )


def _show_verdict(verdict: Verdict, console: Console) -> None:
    words = {True: "holds", False: "FAILED", None: "not judged in real time"}
    limit = ", ".join(f"{name} {value:g}" for name, value in verdict.limit.items())
    value = "not measured" if verdict.value is None else f"{verdict.value:.6g}"
    style = "red" if verdict.passed is False else None
    console.print(f"expect {verdict.name} {limit}: {value}: {words[verdict.passed]}", style=style)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)

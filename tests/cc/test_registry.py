from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cc import registry
from cc.base import Control, Environment
from cc.errors import ControlError
from cc.registry import describe, make, names, resolve
from tests.cc.example import write_example
from tests.cc.loop import Bottleneck, drive, environment

ENV = Environment(4096, 100_000_000_000, 12_000_000, 8 << 20, 5)
HEAD = "from dataclasses import dataclass\nfrom cc.base import Control, Parameters, parameter\n"


def user_file(directory: Path, text: str) -> Path:
    path = directory / "mine.py"
    path.write_text(HEAD + text)
    return path


def offer(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    point = importlib.metadata.EntryPoint(name, value, registry.GROUP)
    monkeypatch.setattr(registry, "_installed", lambda: {name: point})


def test_every_built_in_name_resolves_to_a_described_control() -> None:
    assert names()[:4] == ["fixed", "dctcp", "swift", "nscc"]
    for name in registry.BUILT_IN:
        cls = resolve(name)
        assert cls.name == name
        assert cls.source
        assert cls.summary
        assert make(cls, None, ENV).window >= ENV.segment


def test_asking_for_names_imports_no_control() -> None:
    code = (
        "import sys, cc.registry; cc.registry.names(); print([m for m in sys.modules if m in ('cc.dctcp', 'cc.swift')])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ControlError, match=r"'cubic' is unknown; known: fixed, dctcp, swift, nscc.*file\.py:Class"):
        resolve("cubic")


def test_the_rows_of_a_control_say_default_range_unit_and_meaning() -> None:
    rows = {row.name: row for row in describe(resolve("dctcp"))}
    assert rows["g"].default == 1 / 16
    assert (rows["g"].low, rows["g"].high, rows["g"].unit) == (1 / 1024, 1.0, "1")
    assert "alpha" in rows["g"].meaning


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("dctcp", {"gee": 0.1}, r"dctcp: parameter 'gee' \(= 0.1\) is unknown; known: g, initial_alpha"),
        ("dctcp", {"g": 1.5}, r"dctcp: parameter g: 1.5 is not allowed; it is a number from 0.0009765625 to 1.0"),
        ("dctcp", {"g": "0.1"}, r"parameter g: '0.1' is not allowed; it is a number"),
        ("dctcp", {"g": True}, r"parameter g: True is not allowed"),
        ("dctcp", {"g": float("nan")}, r"parameter g: nan is not allowed"),
        ("dctcp", {"g": 10**400}, r"parameter g: inf is not allowed"),
        ("fixed", {"window_bytes": 1.0}, r"window_bytes: 1.0 is not allowed; it is a whole number from 0 to"),
        ("fixed", {"window_bytes": -1}, r"window_bytes: -1 is not allowed; .*\(bytes\)"),
        ("swift", {"retx_reset": 0}, r"swift: parameter retx_reset: 0 is not allowed"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_what_is_allowed(
    name: str, values: Mapping[str, object], told: str
) -> None:
    with pytest.raises(ControlError, match=told):
        make(resolve(name), values, ENV)


def test_every_parameter_accepts_both_ends_of_its_range() -> None:
    for name in registry.BUILT_IN:
        for row in describe(resolve(name)):
            for value in (row.low, row.high, row.default):
                control = make(resolve(name), {row.name: value}, ENV)
                assert ENV.segment <= control.window <= ENV.max_window


def test_a_whole_number_given_for_a_real_one_becomes_real() -> None:
    declared: Any = resolve("dctcp").Parameters
    assert type(declared(g=1).g) is float


@pytest.mark.parametrize("field", ["segment", "rate", "base_rtt", "max_window"])
def test_an_environment_without_a_sensible_value_is_refused(field: str) -> None:
    values = {"segment": 4096, "rate": 10**11, "base_rtt": 10**7, "max_window": 10**6, field: 0}
    with pytest.raises(ControlError, match="base_rtt >= 1"):
        Environment(**values)


def test_the_documented_example_plugs_in_and_moves(tmp_path: Path) -> None:
    cls = resolve(write_example(tmp_path))
    assert [row.name for row in describe(cls)] == ["step", "cut"]
    link = Bottleneck(mark_above=50_000)
    controls = [make(cls, {"cut": 0.5}, environment(link)) for _ in range(4)]
    tail = drive(controls, link, 100)[50:]
    assert sum(r.queue for r in tail) / len(tail) < 60_000


def test_the_same_file_is_run_once_and_a_changed_one_anew(tmp_path: Path) -> None:
    path = user_file(tmp_path, "class Mine(Control):\n    summary = 'one'\n")
    first = resolve(f"{path}:Mine")
    assert resolve(f"{path}:Mine") is first
    path.write_text(path.read_text().replace("one", "two"))
    assert resolve(f"{path}:Mine").summary == "two"
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.py"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match=r"nowhere\.py cannot be read: No such file"):
        resolve(f"{tmp_path / 'nowhere.py'}:Mine")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("class Mine(Control)\n", r"mine\.py cannot be loaded: line 3: "),
        ("x = 1\nraise KeyError('no')\n", r"mine\.py cannot be loaded: line 4: KeyError: 'no'"),
        ("class Other(Control): pass\n", r"mine\.py has no 'Mine'; controls in it: Other"),
        ("class Mine: pass\n", r"mine\.py:Mine is not a subclass of cc\.base\.Control"),
        ("Mine = 3\n", r"mine\.py:Mine is not a subclass of cc\.base\.Control"),
        ("class Mine(Control):\n    def on_ack(self, ack): pass\n", r"on_ack cannot be called as on_ack\(now, ack\)"),
        ("class Mine(Control):\n    def on_timeout(self): pass\n", r"on_timeout cannot be called as on_timeout\(now\)"),
        ("class Mine(Control):\n    def __init__(self, env): pass\n", r"__init__ cannot be called as __init__\(para"),
        ("class Mine(Control):\n    async def on_ack(self, now, ack): pass\n", r"on_ack is async or a generator"),
        ("class Mine(Control):\n    on_loss = 5\n", r"on_loss is not an ordinary method on_loss\(now, loss\)"),
        ("class Mine(Control):\n    @staticmethod\n    def on_ack(now, ack): pass\n", r"on_ack is not an ordinary"),
        ("class Mine(Control):\n    needs = {'telepathy'}\n", r"needs = \{'telepathy'\} is not a set of ecn, int_tele"),
        ("class Mine(Control):\n    needs = 'ecn'\n", r"needs = 'ecn' is not a set of"),
        ("class Mine(Control):\n    Parameters = dict\n", r"Parameters is not a subclass of cc\.base\.Parameters"),
        (
            "class P(Parameters):\n    a: int = parameter(1, 0, 2, '1', 'a')\n"
            "class Mine(Control):\n    Parameters = P\n",
            r"Parameters \(P\) is not decorated with @dataclass",
        ),
        (
            "@dataclass(frozen=True)\nclass P(Parameters):\n    a: int = 5\nclass Mine(Control):\n    Parameters = P\n",
            r"Parameters\.a is not declared with parameter\(default, low",
        ),
        (
            "@dataclass(frozen=True)\nclass P(Parameters):\n    a: int = parameter(5, 0, 2, '1', 'a')\n"
            "class Mine(Control):\n    Parameters = P\n",
            r"cannot be made from its defaults: parameter a: 5 is not allowed",
        ),
    ],
)
def test_a_file_that_holds_no_usable_control_says_what_is_missing(tmp_path: Path, text: str, told: str) -> None:
    path = user_file(tmp_path, text)
    with pytest.raises(ControlError, match=told):
        resolve(f"{path}:Mine")


def test_all_faults_of_a_class_are_told_at_once(tmp_path: Path) -> None:
    path = user_file(tmp_path, "class Mine(Control):\n    on_loss = 5\n    def on_ack(self): pass\n    needs = 'x'\n")
    with pytest.raises(ControlError, match=r"on_ack .*; on_loss .*; needs "):
        resolve(f"{path}:Mine")


def test_a_control_without_a_window_to_begin_with_is_refused(tmp_path: Path) -> None:
    path = user_file(tmp_path, "class Mine(Control):\n    def __init__(self, p, env): self.window = self.rate = 0\n")
    with pytest.raises(ControlError, match=r"Mine begins with window 0 and rate 0.*super\(\)\.__init__"):
        make(resolve(f"{path}:Mine"), None, ENV)


def test_an_installed_control_is_known_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "theirs", "cc.base:Control")
    assert names()[-1] == "theirs"
    assert resolve("theirs") is Control


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("no.such.module:Thing", r"entry point theirs = no\.such\.module:Thing cannot be loaded: ModuleNotFoundError"),
        ("cc.signals:AckSignal", r"entry point theirs = cc\.signals:AckSignal is not a subclass of cc\.base\.Control"),
    ],
)
def test_an_entry_point_that_gives_no_control_is_named(monkeypatch: pytest.MonkeyPatch, value: str, told: str) -> None:
    offer(monkeypatch, "theirs", value)
    with pytest.raises(ControlError, match=told):
        resolve("theirs")


def test_a_built_in_name_cannot_be_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "dctcp", "cc.base:Control")
    assert resolve("dctcp").name == "dctcp"
    assert names().count("dctcp") == 1

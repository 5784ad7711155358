"""The import directions of docs/design.md, enforced over every module, and what importing the packages may load.

The rules are one table, LAYERS. The checker reads source text only; the tests at the end show that it can fail.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("cc", "transport", "testbed")

#: I/O, the clock and chance are handed in as arguments, so that the core can be driven in virtual time.
OUTSIDE_WORLD = frozenset(
    {"asyncio", "multiprocessing", "random", "secrets", "select", "selectors", "signal", "socket", "ssl"}
    | {"subprocess", "threading", "time", "uuid"}
)
#: Declarations of C that a .pxd or .pyx may cimport; they are no Python modules.
C_LIBRARIES = frozenset({"cpython", "libc", "posix"})


@dataclass(frozen=True)
class Layer:
    """What the modules of one layer may import besides the standard library.

    modules: the modules or packages it consists of; the longest match decides. ours: names of layers, or single
    modules of this project. third_party: installed packages. banned: standard modules that it may name only under
    TYPE_CHECKING.
    """

    name: str
    modules: tuple[str, ...]
    ours: tuple[str, ...]
    third_party: tuple[str, ...] = ()
    banned: frozenset[str] = frozenset()


LAYERS = (
    Layer("cc", ("cc",), ("cc",), ("cython",), OUTSIDE_WORLD),
    Layer(
        "core",
        ("transport",),
        ("cc", "core", "transport.nic.base"),
        ("cython", "typing_extensions", "zlib_ng"),
        OUTSIDE_WORLD,
    ),
    Layer(
        "bootstrap",
        ("transport.bootstrap", "transport.group"),
        ("bootstrap", "core"),
        (),
        OUTSIDE_WORLD - {"selectors", "socket", "ssl", "time"},
    ),
    Layer(
        "bootstrap of asyncio",
        ("transport.bootstrap_aio",),
        ("bootstrap", "core"),
        (),
        OUTSIDE_WORLD - {"asyncio", "socket", "ssl"},
    ),
    Layer(
        "nic",
        ("transport.nic",),
        ("nic", "transport.packet", "transport.control", "transport.wire", "transport.clock", "transport.errors"),
        ("cython",),
        frozenset({"asyncio"}),
    ),
    Layer(
        "nic of asyncio",
        ("transport.nic.dgram", "transport.nic.streams"),
        ("nic", "nic of asyncio", "transport.clock", "transport.errors"),
        ("asyncio_dgram",),
    ),
    Layer("driver", ("transport.driver",), ("core", "nic"), ("cython",), OUTSIDE_WORLD),
    Layer("telemetry", ("transport.telemetry",), ("core", "driver"), (), OUTSIDE_WORLD - {"signal", "time"}),
    Layer(
        "api",
        ("transport.api",),
        ("api", "bootstrap", "core", "driver", "nic", "nic of asyncio"),
        ("typing_extensions",),
        OUTSIDE_WORLD - {"random", "select", "ssl"},
    ),
    Layer(
        "api of asyncio",
        ("transport.api.aio",),
        ("api", "bootstrap", "bootstrap of asyncio", "core", "driver", "nic", "nic of asyncio"),
        (),
        OUTSIDE_WORLD - {"asyncio", "ssl"},
    ),
    Layer(
        "simulator",
        ("testbed.sim",),
        ("simulator", "transport.packet", "transport.clock", "transport.errors", "transport.nic.base"),
        ("cython",),
        OUTSIDE_WORLD,
    ),
    Layer("simulated host", ("testbed.sim.host",), ("core", "simulator"), ("cython",), OUTSIDE_WORLD),
    Layer(
        "testbed",
        ("testbed",),
        (
            "bootstrap",
            "cc",
            "core",
            "nic",
            "nic of asyncio",
            "driver",
            "simulator",
            "simulated host",
            "telemetry",
            "testbed",
        ),
        ("cython", "numpy", "pydantic", "rich", "typer"),
    ),
)
#: Optional packages and the only modules that may import them (NOTICE names those that import scapy).
OPTIONAL = {"scapy": ("transport.scapy_layers",), "pyarrow": ("testbed.record.parquet",)}


@dataclass(frozen=True)
class Import:
    """One imported module. lazy: inside a function. typing: under `if TYPE_CHECKING`."""

    target: str
    line: int
    lazy: bool = False
    typing: bool = False


def belongs(module: str, owner: str) -> bool:
    return module == owner or module.startswith(owner + ".")


def layer_of(module: str) -> Layer:
    owners = [(len(owner), layer) for layer in LAYERS for owner in layer.modules if belongs(module, owner)]
    return max(owners, key=lambda pair: pair[0])[1]


class Reader(ast.NodeVisitor):
    """Collects the imports of a Python source, also importlib.import_module and __import__ of a literal name."""

    def __init__(self, module: str, is_package: bool, known: Iterable[str]) -> None:
        self.package = module if is_package else module.rpartition(".")[0]
        self.known = frozenset(known)
        self.found: list[Import] = []
        self.lazy = self.typing = False

    def add(self, target: str, line: int) -> None:
        self.found.append(Import(target, line, self.lazy, self.typing))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(alias.name, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parts = self.package.split(".")
            base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            self.add(inner if inner in self.known else base, node.lineno)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant):
            self.add(str(node.args[0].value), node.lineno)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        test = node.test.attr if isinstance(node.test, ast.Attribute) else getattr(node.test, "id", "")
        self.visit(node.test)
        before, self.typing = self.typing, self.typing or test == "TYPE_CHECKING"
        for child in node.body:
            self.visit(child)
        self.typing = before
        for child in node.orelse:
            self.visit(child)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        before, self.lazy = self.lazy, True
        self.generic_visit(node)
        self.lazy = before

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef


CYTHON_FROM = re.compile(r"^(?P<indent>\s*)from\s+(?P<base>[\w.]+)\s+c?import\s+(?P<names>.+)$")
CYTHON_IMPORT = re.compile(r"^(?P<indent>\s*)c?import\s+(?P<names>.+)$")


def cython_imports(source: str, known: Iterable[str]) -> Iterator[Import]:
    """The imports and cimports of a .pxd or .pyx source, which ast cannot parse."""
    known = frozenset(known)
    for number, line in enumerate(source.splitlines(), 1):
        match = CYTHON_FROM.match(line) or CYTHON_IMPORT.match(line)
        if match is None:
            continue
        names = [name.split()[0] for name in match["names"].partition("#")[0].strip(" ()").split(",") if name.strip()]
        base = match.groupdict().get("base")
        for name in names:
            inner = f"{base}.{name}" if base else name
            yield Import(inner if inner in known or not base else base, number, lazy=bool(match["indent"]))


def imports_of(module: str, path: Path, source: str, known: Iterable[str]) -> list[Import]:
    if path.suffix != ".py":
        return list(cython_imports(source, known))
    reader = Reader(module, path.name == "__init__.py", known)
    reader.visit(ast.parse(source))
    return reader.found


def breach(module: str, found: Import) -> str | None:
    """What is wrong with an import of a module, or None."""
    layer = layer_of(module)
    top = found.target.partition(".")[0]
    if top in OPTIONAL:
        if module in OPTIONAL[top]:
            return None
        return f"{top} is optional, and only {', '.join(OPTIONAL[top])} may import it"
    if top in PACKAGES:
        if layer_of(found.target).name in layer.ours or found.target in layer.ours:
            return None
        return f"{layer.name} imports {found.target}, it may import {', '.join(layer.ours)}"
    if top in sys.stdlib_module_names:
        if top in layer.banned and not found.typing:
            return f"{layer.name} may name {top} only under TYPE_CHECKING"
        return None
    if top in layer.third_party or top in C_LIBRARIES:
        return None
    return f"{layer.name} imports {found.target}, of what is installed it may import {', '.join(layer.third_party)}"


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """One import cycle, as the modules along it, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(
    path for package in PACKAGES for suffix in ("py", "pxd", "pyx") for path in (ROOT / package).rglob(f"*.{suffix}")
)
KNOWN = frozenset(module_name(path) for path in FILES)


def tree_imports(path: Path) -> list[Import]:
    return imports_of(module_name(path), path, path.read_text(encoding="utf-8"), KNOWN)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    problems = [(found.line, breach(module_name(path), found)) for found in tree_imports(path)]
    assert [f"line {line}: {problem}" for line, problem in problems if problem] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {module: set() for module in KNOWN}
    for path in FILES:
        module = module_name(path)
        targets = {found.target for found in tree_imports(path) if not found.lazy and not found.typing}
        graph[module] |= (targets & KNOWN) - {module}
    assert cycle(graph) == []


def test_importing_every_module_loads_no_optional_package() -> None:
    optional_modules = {module for modules in OPTIONAL.values() for module in modules}
    modules = sorted(KNOWN - optional_modules - {"testbed.__main__"})
    program = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print([name for name in {sorted(OPTIONAL)!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")


def test_every_layer_and_every_optional_module_exists() -> None:
    named = {module for layer in LAYERS for module in layer.modules}
    named |= {module for layer in LAYERS for module in layer.ours} - {layer.name for layer in LAYERS}
    named |= {module for modules in OPTIONAL.values() for module in modules}
    assert named <= KNOWN


def test_the_notice_names_the_modules_that_import_scapy() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    listed = re.findall(r"^ +(\S+)\.py$", notice, re.MULTILINE)
    assert [name.replace("/", ".") for name in listed] == list(OPTIONAL["scapy"])


# The checker itself: what it must refuse, and what it must let pass.

KNOWN_HERE = frozenset(
    {"transport", "transport.endpoint", "transport.wire", "transport.nic", "transport.nic.udp", "cc"}
)


def problems_in(module: str, source: str, suffix: str = ".py") -> list[str]:
    path = Path(module.rpartition(".")[2] + suffix)
    found = imports_of(module, path, source, KNOWN_HERE | {module})
    return [problem for problem in (breach(module, item) for item in found) if problem]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("transport.sender", "import socket"),
        ("transport.sender", "import time as clock"),
        ("transport.sender", "from random import Random"),
        ("transport.sender", "def f():\n    import asyncio"),
        ("transport.sender", "try:\n    import selectors\nexcept ImportError:\n    pass"),
        ("transport.sender", "if TYPE_CHECKING:\n    pass\nelse:\n    import time"),
        ("transport.sender", "from transport.nic.udp import UdpNic"),
        ("transport.sender", "from transport.nic import udp"),
        ("transport.sender", "from .nic import udp"),
        ("transport.sender", "from testbed import runner"),
        ("transport.sender", "import importlib\nimportlib.import_module('scapy.all')"),
        ("transport.sender", "__import__('socket')"),
        ("transport.sender", "import numpy"),
        ("transport.wire", "from scapy.all import IP"),
        ("transport.nic.udp", "from transport.endpoint import Endpoint"),
        ("transport.nic.udp", "from transport import endpoint"),
        ("transport.nic.udp", "if TYPE_CHECKING:\n    from transport.endpoint import Endpoint"),
        ("transport.nic.udp", "import cc"),
        ("transport.nic.udp", "import scapy"),
        ("transport.driver", "import time"),
        ("transport.sender", "from transport.api import memory"),
        ("transport.api.blocking", "import asyncio"),
        ("transport.api.aio", "import threading"),
        ("cc.fixed", "from transport.clock import SECOND"),
        ("cc.fixed", "import numpy as np"),
        ("cc.fixed", "import random"),
        ("testbed.runner", "import scapy.all"),
        ("testbed.runner", "import matplotlib"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str) -> None:
    assert len(problems_in(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source", "suffix"),
    [
        ("cc.fixed", "from transport.packet cimport Packet", ".pxd"),
        ("cc.fixed", "from transport cimport wire", ".pxd"),
        ("transport.nic.udp", "cimport transport.endpoint", ".pxd"),
        ("transport.nic._mmsg", "cdef int f():\n    import scapy", ".pyx"),
        ("transport.sender", "from time import time", ".pyx"),
    ],
)
def test_a_forbidden_cimport_is_found(module: str, source: str, suffix: str) -> None:
    assert len(problems_in(module, source, suffix)) == 1


@pytest.mark.parametrize(
    ("module", "source", "suffix"),
    [
        ("transport.sender", "if TYPE_CHECKING:\n    import random", ".py"),
        ("transport.sender", "import typing\nif typing.TYPE_CHECKING:\n    from random import Random", ".py"),
        (
            "transport.sender",
            "import cython\nfrom transport.nic.base import NicCaps\nfrom cc.base import Control",
            ".py",
        ),
        ("transport.sender", "from . import wire\nfrom .wire import parse", ".py"),
        ("transport.nic.udp", "import socket, time\nfrom transport.packet import Packet", ".py"),
        ("transport.scapy_layers", "from scapy.all import Packet", ".py"),
        (
            "transport.nic._mmsg",
            "from libc.string cimport memcpy  # copies\nfrom transport.packet cimport Packet",
            ".pyx",
        ),
        ("testbed.runner", "import time, numpy\nfrom transport.driver import Driver", ".py"),
    ],
)
def test_an_allowed_import_passes(module: str, source: str, suffix: str) -> None:
    assert problems_in(module, source, suffix) == []


def test_a_circle_is_found() -> None:
    assert set(cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []

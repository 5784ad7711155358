"""The project's own files agree with each other: hot modules, package data, Makefile, licence, test groups."""

from __future__ import annotations

import ast
import fnmatch
import importlib
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("cc", "transport", "testbed")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUP = (ROOT / "setup.py").read_text(encoding="utf-8")


def constant(name: str) -> list[str]:
    """The value of a list of strings in setup.py, read without running it."""
    for node in ast.parse(SETUP).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return list(ast.literal_eval(node.value))
    raise AssertionError(f"setup.py has no {name}")


HOT = constant("HOT")
LEAVES = constant("LEAVES")
FILES = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if "__pycache__" not in path.parts]


def stem(module: str) -> Path:
    return ROOT.joinpath(*module.split("."))


def binaries(module: str) -> list[Path]:
    path = stem(module)
    return [*path.parent.glob(f"{path.name}.*.so"), *path.parent.glob(f"{path.name}.*.pyd")]


def test_hot_modules_are_named_once_and_in_order() -> None:
    assert sorted(set(HOT)) == HOT
    assert sorted(set(LEAVES)) == LEAVES
    assert not set(HOT) & set(LEAVES)


@pytest.mark.parametrize("module", HOT)
def test_a_hot_module_is_plain_python(module: str) -> None:
    path = stem(module)
    assert path.with_suffix(".py").is_file()
    assert not path.with_suffix(".pyx").exists()


def test_a_leaf_has_a_plain_python_sibling() -> None:
    for module in LEAVES:
        path = stem(module)
        assert path.with_suffix(".pyx").is_file()
        assert path.with_suffix(".py").is_file()


def test_every_pxd_declares_a_module_that_is_compiled() -> None:
    declared = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES if path.suffix == ".pxd"}
    assert declared <= set(HOT) | set(LEAVES)


def test_every_pyx_is_a_leaf() -> None:
    sources = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES if path.suffix == ".pyx"}
    assert sources == set(LEAVES)


def test_all_compiled_modules_are_there_or_none() -> None:
    built = [module for module in HOT + LEAVES if binaries(module)]
    assert built in ([], HOT + LEAVES)


@pytest.mark.parametrize("module", HOT)
def test_no_extension_module_is_older_than_its_source(module: str) -> None:
    sources = [path for path in (stem(module).with_suffix(".py"), stem(module).with_suffix(".pxd")) if path.exists()]
    stale = [
        path.name
        for path in binaries(module)
        if path.stat().st_mtime < max(source.stat().st_mtime for source in sources)
    ]
    assert stale == [], "run `make setup`: this module was edited after it was compiled"


@pytest.mark.parametrize("module", HOT)
def test_a_hot_module_runs_from_its_binary_or_from_its_source(module: str) -> None:
    loaded = importlib.import_module(module).__file__
    assert loaded is not None
    assert Path(loaded) in (binaries(module) or [stem(module).with_suffix(".py")])


@pytest.mark.skipif("POLYROCE_PURE" not in os.environ, reason="only says something in a run that asks for no C")
def test_pure_means_interpreted() -> None:
    assert os.environ["POLYROCE_PURE"] == "0" or [path for path in FILES if path.suffix in (".so", ".pyd")] == []


def test_both_modes_are_built_to_give_the_same_bits() -> None:
    flags = constant("FLAGS")
    assert "-ffp-contract=off" in flags
    assert not [flag for flag in flags if flag.startswith(("-march", "-mtune", "-ffast-math", "-Ofast"))]


def test_every_file_of_a_package_is_shipped() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    built = ("*.py", "*.so", "*.pyd")
    left_out = [
        str(path.relative_to(ROOT))
        for path in FILES
        if path.is_file() and not any(fnmatch.fnmatch(path.name, pattern) for pattern in (*built, *patterns))
    ]
    assert left_out == []


def test_data_made_by_others_comes_with_a_notice() -> None:
    folders = {path.parent for path in FILES if path.suffix in (".csv", ".cm")}
    folders |= {path.parent for path in (ROOT / "tests").rglob("*") if path.suffix in (".pcap", ".cm")}
    assert [str(folder.relative_to(ROOT)) for folder in sorted(folders) if not list(folder.glob("NOTICE*"))] == []


def test_the_build_extra_is_what_the_build_needs() -> None:
    assert PROJECT["project"]["optional-dependencies"]["build"] == PROJECT["build-system"]["requires"]


def test_optional_packages_are_no_dependencies() -> None:
    names = {re.split(r"[<>=\[]", item)[0].lower() for item in PROJECT["project"]["dependencies"]}
    assert not names & {"scapy", "pyverbs", "matplotlib"}


def test_the_licence_is_the_whole_apache_licence() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert "9. Accepting Warranty or Additional Liability" in text


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_rebuilds_when_a_hot_source_changes() -> None:
    # Not the flags of the make that may be running these tests.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--eval=shown: ; @echo $(HOT_SOURCES)", "shown"]
    shown = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    expected = {f"{module.replace('.', '/')}.py" for module in HOT}
    expected |= {f"{module.replace('.', '/')}.pyx" for module in LEAVES}
    expected |= {str(path.relative_to(ROOT)) for path in FILES if path.suffix == ".pxd"}
    assert set(shown.stdout.split()) == expected


def binds_sockets(source: str) -> bool:
    """Whether a test module opens UDP sockets of its own or through the command line."""
    imports = re.search(
        r"^\s*(import socket|from socket |from transport\.nic\.(udp|dgram)|from transport\.nic import udp)",
        source,
        re.M,
    )
    return bool(imports) or ('"--on"' in source and '"udp"' in source) or '"--local"' in source


def test_tests_that_bind_sockets_share_one_group() -> None:
    alone = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if path != Path(__file__) and binds_sockets(path.read_text(encoding="utf-8"))
    ]
    ungrouped = [name for name in alone if 'xdist_group("ports")' not in (ROOT / name).read_text(encoding="utf-8")]
    assert ungrouped == [], "two workers must not bind the same port: mark with pytest.mark.xdist_group('ports')"


def test_scripts_can_be_run() -> None:
    for name in (".ci/run", ".ci/find-python"):
        assert os.access(ROOT / name, os.X_OK)

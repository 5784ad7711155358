"""docs/cases.md names tests that exist, a test for every row, and every module of this folder."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
#: `test_one`, `test_two` (tests/folder/test_module.py)
TESTS = re.compile(r"((?:`test_\w+`(?:, )?)+) \((tests/[\w/]+\.py)\)")


def named(text: str) -> list[tuple[str, str]]:
    """Module and name of each test that a text names."""
    return [(path, name) for names, path in TESTS.findall(text) for name in re.findall(r"\w+", names)]


NAMED = named(TEXT)


@cache
def defined_in(path: str) -> frozenset[str]:
    """The tests that a module defines, as pytest finds them: functions of the module whose name begins with test."""
    if not (ROOT / path).is_file():
        return frozenset()
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return frozenset(name for name in functions if name.startswith("test_"))


def rows() -> list[list[str]]:
    """The cells of each row of each table, heads left out."""
    lines = [line for line in TEXT.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] not in ("case", "row") and not set(row[0]) <= {"-"}]


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED)))
def test_a_named_test_exists(path: str, name: str) -> None:
    assert name in defined_in(path)


def test_every_row_is_whole_and_ends_with_its_tests() -> None:
    found = rows()
    assert len(found) > 40
    assert all(len(row) in (3, 4) and all(row) for row in found)
    for row in found:
        assert TESTS.sub("", row[-1]).replace(",", "").strip() == "", row
    assert sum(len(named(row[-1])) for row in found) == len(NAMED)


def test_every_module_of_this_folder_is_in_the_document() -> None:
    here = {f"tests/cases/{path.name}" for path in (ROOT / "tests" / "cases").glob("test_*.py")}
    assert here - {path for path, _ in NAMED} == {"tests/cases/test_document.py"}


@pytest.mark.parametrize("row", ["E1", "E3", "E6", "E8"])
def test_a_row_of_the_scenario_table_is_tested_by_tests_that_say_its_name(row: str) -> None:
    (cells,) = [cells for cells in rows() if cells[0] == row]
    names = [name for _, name in named(cells[-1])]
    assert names
    assert all(name.startswith(f"test_{row.lower()}_") for name in names)


def test_a_test_that_does_not_exist_is_found() -> None:
    assert "test_nothing_of_this_name" not in defined_in("tests/cases/test_document.py")
    assert "test_a_named_test_exists" in defined_in("tests/cases/test_document.py")
    assert defined_in("tests/cases/test_missing.py") == frozenset()

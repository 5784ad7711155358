"""Every file, make target, command, option and environment variable that the documents name exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from testbed import cli

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
INDENTED = re.compile(r"^    (\S.*)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)\)")
#: A path of this project: a known suffix or folder, no placeholder (capitals alone, *, <>) and no colon.
FILE = re.compile(r"(?<![\w./-])((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|pxd|pyx|md|toml))(?![\w*:<])")
FOLDERS = ("cc/", "transport/", "testbed/", "tests/", "docs/", ".ci/")
VARIABLE = re.compile(r"\bPOLYROCE_[A-Z_]+\b")
MAKE = re.compile(r"(?:^|[\s;])make ([a-z]+)")
COMMAND = re.compile(r"^(?:\S+/)?(?:polyroce|python -m testbed)(?:\s+(.*))?$")


def code(text: str) -> Iterator[str]:
    """Code spans and the lines of code blocks."""
    for block in FENCE.findall(text):
        yield from block.splitlines()[1:-1]
    text = FENCE.sub("", text)
    yield from SPAN.findall(text)
    yield from INDENTED.findall(text)


def named_files(text: str) -> set[str]:
    """Files and folders named by a document, in code or in running text, as paths from the project's root."""
    found = {match.rstrip(".") for match in FILE.findall(FENCE.sub("", text))}
    return {
        name
        for name in found
        if name.startswith(FOLDERS) or ("/" not in name and name in {"setup.py", "pyproject.toml", "CONTRIBUTING.md"})
    }


def command_line() -> Any:
    app = next(value for value in vars(cli).values() if isinstance(value, typer.Typer))
    return typer.main.get_command(app)


def options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}


def unknown_words(line: str, root: Any) -> list[str]:
    """The subcommands and options of a `polyroce ...` line that the command line does not have."""
    words = (COMMAND.match(line.partition(" #")[0].strip()) or [None, None])[1]
    words = re.sub(r"[\[\]|]", " ", words or "").split()
    command, wrong = root, []
    subcommands = getattr(root, "commands", {})
    if words and not words[0].startswith("-"):
        if words[0] not in subcommands:
            return [words[0]]
        command = subcommands[words[0]]
    return wrong + [
        word for word in (w.partition("=")[0] for w in words) if word.startswith("--") and word not in options(command)
    ]


@pytest.fixture(params=DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def document(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def test_named_files_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert sorted(name for name in named_files(text) if not (ROOT / name).exists()) == []


def test_links_lead_somewhere(document: Path) -> None:
    targets = [target for target in LINK.findall(document.read_text(encoding="utf-8")) if "://" not in target]
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {target for line in code(document.read_text(encoding="utf-8")) for target in MAKE.findall(line)}
    assert sorted(named - targets) == []


def test_commands_and_options_exist(document: Path) -> None:
    root = command_line()
    lines = [line for line in code(document.read_text(encoding="utf-8")) if COMMAND.match(line.strip())]
    wrong = {line: unknown_words(line, root) for line in lines}
    assert {line: words for line, words in wrong.items() if words} == {}


def test_environment_variables_are_read_somewhere(document: Path) -> None:
    sources = [
        ROOT / "setup.py",
        ROOT / "Makefile",
        *(ROOT / "testbed").rglob("*.py"),
        *(ROOT / "transport").rglob("*.py"),
    ]
    read = {name for path in sources for name in VARIABLE.findall(path.read_text(encoding="utf-8"))}
    assert set(VARIABLE.findall(document.read_text(encoding="utf-8"))) <= read


def test_documents_wait_for_nothing(document: Path) -> None:
    assert re.findall(r"<!--.*?-->|\bTODO\b|\bTBD\b", document.read_text(encoding="utf-8")) == []


def test_every_document_of_the_decisions_is_in_their_index() -> None:
    folder = ROOT / "docs" / "decisions"
    records = {path.name for path in folder.glob("[0-9]*.md")}
    assert records == set(LINK.findall((folder / "README.md").read_text(encoding="utf-8")))


def test_a_wrong_file_a_wrong_command_and_a_wrong_option_are_found() -> None:
    assert named_files("see `transport/nothing.py` and docs/none.md.") == {"transport/nothing.py", "docs/none.md"}
    assert named_files("`--cc path/to/file.py:Class` and https://example.org/a/b.md") == set()
    root = command_line()
    assert unknown_words("polyroce fly moe-alltoall", root) == ["fly"]
    assert unknown_words("polyroce run moe-alltoall --wings 2", root) == ["--wings"]
    assert unknown_words("polyroce --help", root) == []

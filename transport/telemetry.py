"""State dumps of a running process: SIGUSR1 makes one, `polyroce stats PID` asks for one. Schema: docs/observing.md.

A process says with a file in a folder of its user's that SIGUSR1 does it no harm, and leaves each dump beside it:

    PID.json    {"pid", "start", "name"}: it takes SIGUSR1; start tells it from a later process with its number
    PID.ask     how many connections to list: somebody waits for the next dump, which is not printed then
    PID.state   the latest dump, replaced as a whole

The signal's handler only leaves a note with the drivers; the next turn of one of them makes the dump, when no endpoint
is in the middle of anything. All drivers of a process must be turned by the thread that runs Python's signal handlers.
Without /proc (on other systems than Linux) nothing is filed and SIGUSR1 prints.

This module is not part of the core: it does I/O and reads the clock. Nothing here ever fails a transfer.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from transport.errors import ConfigError
from transport.snapshot import LIMIT, SCHEMA, snapshot

if TYPE_CHECKING:
    from types import FrameType

    from transport.driver import Driver

_FIELD_START = 22  # of /proc/PID/stat: start time in clock ticks since boot (proc(5))


def install(
    driver: Driver, name: str, *, wake: Callable[[], object] | None = None, stream: TextIO | None = sys.stderr
) -> Installed:
    """Have SIGUSR1 dump the state of the endpoint of `driver`, until `close` of what this returns.

    name: what the endpoint is called in dumps. wake: called by the signal's handler to have `driver` turned soon, if it
    may sleep for long. stream: where a dump is printed that nobody waits for, as one line; None: nowhere, the file has
    it. ConfigError outside of the main thread.
    """
    return _process.add(Installed(driver, name, wake, stream))


class Installed:
    """One endpoint that is in the dumps of this process."""

    def __init__(
        self, driver: Driver, name: str, wake: Callable[[], object] | None, stream: TextIO | None
    ) -> None:  # fmt: skip
        self.driver = driver
        self.name = name
        self.wake = wake
        self.stream = stream

    def close(self) -> None:
        """Take the endpoint out. After the last one the process ignores SIGUSR1. Twice does no harm."""
        _process.remove(self)

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Process:
    """What this process has installed."""

    def __init__(self) -> None:
        self.installed: list[Installed] = []
        self.serial = 0

    def add(self, installed: Installed) -> Installed:
        if not self.installed:
            try:
                signal.signal(signal.SIGUSR1, self._on_signal)
            except ValueError:
                raise ConfigError("telemetry: only the main thread can install it, as with every signal") from None
            atexit.register(self._end)
            _unlink()
        self.installed.append(installed)
        self._file()
        return installed

    def remove(self, installed: Installed) -> None:
        if installed not in self.installed:
            return
        self.installed.remove(installed)
        installed.driver.interrupt = None
        if not self.installed:
            self._end()
            atexit.unregister(self._end)
        else:
            self._file()

    def _end(self) -> None:
        """No dumps any more. A signal that is on its way finds a process that ignores it, not one that it kills."""
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        _unlink()

    def _file(self) -> None:
        """Say that SIGUSR1 is welcome, if there is a place to say so."""
        start = start_time(os.getpid())
        if start is None:
            return
        with suppress(OSError):
            folder = registry(os.geteuid())
            _prepare(folder)
            told = {"pid": os.getpid(), "start": start, "name": ", ".join(item.name for item in self.installed)}
            _replace(folder / f"{os.getpid()}.json", json.dumps(told))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        for item in self.installed:
            item.driver.interrupt = self._dump
            if item.wake is not None:
                item.wake()

    def _dump(self) -> None:
        """Make a dump, file it, and print it if nobody waits for it."""
        for item in self.installed:
            item.driver.interrupt = None
        limit = self._asked()
        text = json.dumps(self._state(LIMIT if limit is None else limit))
        with suppress(OSError):
            _replace(registry(os.geteuid()) / f"{os.getpid()}.state", text)
        stream = self.installed[0].stream if self.installed else None
        if limit is None and stream is not None:
            with suppress(OSError, ValueError):  # ValueError: it was closed
                print(text, file=stream, flush=True)

    def _state(self, limit: int) -> dict[str, Any]:
        self.serial += 1
        state: dict[str, Any] = {
            "version": SCHEMA, "pid": os.getpid(), "serial": self.serial, "time_s": time.time(), "endpoints": [],
            "failure": None,
        }  # fmt: skip
        try:
            state["endpoints"] = [
                {"name": item.name, **snapshot(item.driver.endpoint, item.driver.nic, limit)} for item in self.installed
            ]
        except Exception as error:  # a fault of the picture must not become one of the transfer
            state["failure"] = f"{type(error).__name__}: {error}"
        return state

    def _asked(self) -> int | None:
        """How many connections to list, if somebody waits for a dump; the question is taken away."""
        path = registry(os.geteuid()) / f"{os.getpid()}.ask"
        try:
            _check(path.parent)
            text = path.read_text(encoding="ascii")
            path.unlink()
            return int(text)
        except (OSError, ValueError):
            return None


_process = _Process()


def registry(uid: int) -> Path:
    """The folder where the processes of a user file what they have: the same whatever the environment says."""
    own = Path(f"/run/user/{uid}")
    return own / "polyroce" if own.is_dir() else Path(f"/tmp/polyroce-{uid}")


def start_time(pid: int) -> int | None:
    """When a process started, in a unit that only tells it from others with its number; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[_FIELD_START - 3])


def _prepare(folder: Path) -> None:
    """Make the folder, or see that it is this user's alone; take away what dead processes left. PermissionError, and
    whatever the system says."""
    folder.mkdir(mode=0o700, exist_ok=True)
    _check(folder)
    for path in folder.iterdir():
        with suppress(OSError, ValueError, KeyError, TypeError):
            start = start_time(int(path.name.partition(".")[0]))
            if start is None or (path.suffix == ".json" and json.loads(path.read_text("utf-8"))["start"] != start):
                path.unlink()


def _check(folder: Path) -> None:
    """PermissionError if others may write there, or it is no folder."""
    status = folder.lstat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o170077 != 0o040000:
        raise PermissionError(f"{folder} is not a folder of this user alone")


def _unlink() -> None:
    """Take away what this process, or an earlier one with its number, has filed."""
    folder = registry(os.geteuid())
    with suppress(OSError):
        _check(folder)
        for suffix in ("json", "ask", "state"):
            with suppress(OSError):
                (folder / f"{os.getpid()}.{suffix}").unlink()


def _replace(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or nothing, in a folder that is this user's alone or not at all."""
    _check(path.parent)
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)

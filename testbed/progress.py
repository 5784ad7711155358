"""How far a run is: bars on a terminal, plain lines elsewhere, always on standard error."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Watcher(Protocol):
    """Is told of a run. phases come in order; `done` of `total` messages (or ranks) have finished the current one."""

    def phase(self, name: str, number: int, phases: int, total: int) -> None: ...
    def step(self, done: int) -> None: ...


class Silent:
    """The Watcher that does nothing."""

    def phase(self, name: str, number: int, phases: int, total: int) -> None:
        pass

    def step(self, done: int) -> None:
        pass


class Bars:
    """Shows phases and what of the current one is finished."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._phases: TaskID | None = None
        self._inside: TaskID | None = None

    def phase(self, name: str, number: int, phases: int, total: int) -> None:
        if not self.console.is_terminal:
            self.console.print(f"phase {number + 1} of {phases}: {name}")
            return
        if self._phases is None or self._inside is None:
            self._phases = self._progress.add_task("phases", total=phases)
            self._inside = self._progress.add_task(name, total=total)
        self._progress.update(self._phases, completed=number, total=phases)
        self._progress.update(self._inside, description=name, completed=0, total=total)

    def step(self, done: int) -> None:
        if self._inside is not None:
            self._progress.update(self._inside, completed=done)

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._progress.stop()

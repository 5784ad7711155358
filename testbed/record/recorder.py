"""Collects the rows of a recording and hands them to the files, block by block. No recorder is the default."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from testbed.record.tables import TABLES
from transport.clock import US, Time
from transport.errors import ConfigError

if TYPE_CHECKING:
    from testbed.record.parquet import ParquetFiles

Row: TypeAlias = Sequence[str | int | None]

#: Rows of a table that are kept until they are written.
_KEPT = 100_000


@dataclass(frozen=True)
class RecordPlan:
    """folder: for the files. every: picoseconds from one sample to the next. ConfigError if pyarrow is not there."""

    folder: Path
    every: Time = 10 * US

    @classmethod
    def of(cls, folder: Path, every_us: float) -> RecordPlan:
        """The plan with the time between samples in microseconds."""
        if not 0.001 <= every_us <= 1e6:
            raise ConfigError(f"--record-every {every_us:g}: allowed are 0.001 to 1000000 us")
        return cls(folder, round(every_us * US))

    def __post_init__(self) -> None:
        if importlib.util.find_spec("pyarrow") is None:
            raise ConfigError(
                "--record: the files are written by pyarrow, which is missing: pip install 'polyroce[record]'"
            )


class Recorder:
    """Of a whole run. Rows wait here until there are enough for a block of a file."""

    def __init__(self, files: ParquetFiles, every: Time) -> None:
        self.every = every
        self._files = files
        self._names = {name: [column.name for column in columns] for name, columns in TABLES.items()}
        self._rows: dict[str, list[Row]] = {name: [] for name in TABLES}

    def add(self, table: str, rows: Iterable[Row]) -> None:
        """Rows with a value for each column of the table."""
        kept = self._rows[table]
        kept += rows
        if len(kept) >= _KEPT:
            self._write(table)

    def flush(self) -> None:
        for table in TABLES:
            self._write(table)

    def _write(self, table: str) -> None:
        rows, self._rows[table] = self._rows[table], []
        if rows:
            self._files.write(table, dict(zip(self._names[table], zip(*rows, strict=True), strict=True)))


class VariantRecorder:
    """A recorder for the rows of one variant."""

    def __init__(self, recorder: Recorder, variant: str) -> None:
        self.every = recorder.every
        self._recorder = recorder
        self._variant = variant

    def add(self, table: str, rows: Iterable[Row]) -> None:
        """Rows with a value for each column of the table but the first, which is the variant."""
        self._recorder.add(table, ((self._variant, *row) for row in rows))


@contextmanager
def opened(plan: RecordPlan | None, about: Mapping[str, str]) -> Iterator[Recorder | None]:
    """The recorder of a plan, whose files are complete at the end, also of a run that failed. None without a plan."""
    if plan is None:
        yield None
        return
    from testbed.record.parquet import ParquetFiles

    files = ParquetFiles(plan.folder, {**about, "every_ps": str(plan.every)})
    try:
        recorder = Recorder(files, plan.every)
        try:
            yield recorder
        finally:
            recorder.flush()
    finally:
        files.close()

"""Writes the tables of a recording as Parquet files, one for each. The only module that needs pyarrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from testbed.record.tables import TABLES, Column
from transport.errors import ConfigError

_TYPES = {"text": pa.string(), "int64": pa.int64()}


class ParquetFiles:
    """A file for each table in `folder`, which is made if it is not there. about: goes into the metadata of each.

    ConfigError if they cannot be written."""

    def __init__(self, folder: Path, about: Mapping[str, str]) -> None:
        self._schemas = {name: _schema(columns, about) for name, columns in TABLES.items()}
        self._writers: dict[str, pq.ParquetWriter] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, schema in self._schemas.items():
                path = folder / f"{name}.parquet"
                self._writers[name] = pq.ParquetWriter(path, schema, compression="zstd")
        except OSError as error:
            self.close()
            raise ConfigError(f"--record {folder}: cannot be written: {error.strerror or error}") from None

    def write(self, table: str, columns: Mapping[str, Sequence[str | int | None]]) -> None:
        """Append rows, column by column."""
        schema = self._schemas[table]
        arrays = [pa.array(columns[field.name], field.type) for field in schema]
        self._writers[table].write_table(pa.table(arrays, schema=schema))

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def _schema(columns: Sequence[Column], about: Mapping[str, str]) -> pa.Schema:
    fields = [
        pa.field(column.name, _TYPES[column.kind], column.maybe, {"meaning": column.meaning}) for column in columns
    ]
    return pa.schema(fields, dict(about))

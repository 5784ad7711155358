"""Where in a scenario file, or in which override, a key was given; for errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence


class Where:
    """Finds the place of a key, for errors: an override by which it was set, or the line of the file."""

    def __init__(self, text: str, source: str, origins: Mapping[tuple[str, ...], str] | None = None) -> None:
        self.text = text
        self.source = source
        self.origins = dict(origins or {})

    def with_origin(self, location: tuple[str, ...], origin: str) -> Where:
        return Where(self.text, self.source, {**self.origins, location: origin})

    def __call__(self, location: Sequence[str | int]) -> str:
        names = tuple(str(part) for part in location)
        for length in range(len(names), 0, -1):
            if names[:length] in self.origins:
                return self.origins[names[:length]]
        line = self._line(names)
        return f"{self.source}, line {line}" if line else self.source

    def _line(self, names: tuple[str, ...]) -> int:
        """Line of the deepest part of a key that the text shows, 0 if there is none. Counts [[tables]] of one name."""
        best, depth = 0, 0
        table: tuple[str, ...] = ()
        seen: dict[str, int] = {}
        for number, line in enumerate(self.text.splitlines(), 1):
            header = re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?", line)
            if header and not re.match(r"\s*\[.*=", line):
                table = tuple(part.strip().strip('"') for part in header[2].split("."))
                if header[1] == "[[":
                    seen[header[2]] = seen.get(header[2], -1) + 1
                    table = (*table, str(seen[header[2]]))
                here = table
            else:
                assigned = re.match(r"\s*([A-Za-z0-9_.\"-]+)\s*=", line)
                if not assigned:
                    continue
                here = (*table, *(part.strip('"') for part in assigned[1].split(".")))
            if len(here) > depth and names[: len(here)] == here:
                best, depth = number, len(here)
        return best

"""The error of a run that could not be brought to its end."""

from __future__ import annotations

from transport.errors import PolyroceError


class RunError(PolyroceError):
    """A run failed: a rank died, a deadline passed, a request ended in error. The text names rank, phase and cause."""

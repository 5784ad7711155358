"""The one error of this package."""

from __future__ import annotations


class ControlError(ValueError):
    """A control, or a value given to one, is not allowed. The text names it and says what is allowed."""

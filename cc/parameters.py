"""Declared parameters: a dataclass whose fields say default, range, unit and meaning.

CLI help, validation and sweeps all come from the declaration. Parameters are numbers and switches; a control that needs
a table or a file takes it from its own module.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from cc.errors import ControlError

_DECLARED = ("low", "high", "unit", "meaning")


class Row(NamedTuple):
    """One parameter as the command line shows it."""

    name: str
    default: float | int | bool
    low: float
    high: float
    unit: str
    meaning: str


def parameter(default: float | int | bool, low: float, high: float, unit: str, meaning: str) -> Any:
    """A field of a parameter dataclass: its default (whose type is the parameter's type), the allowed range with both
    ends in it, the unit and the meaning."""
    return dataclasses.field(default=default, metadata={"low": low, "high": high, "unit": unit, "meaning": meaning})


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Base of every control's declared parameters. A value of the wrong type or out of range raises ControlError."""

    def __post_init__(self) -> None:
        check_parameters(self)


def check_parameters(instance: Parameters) -> None:
    """Raise ControlError unless every value has its default's type and lies in its range. A whole number given for a
    real one becomes real, so that both spellings compute the same."""
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if type(field.default) is float and type(value) is int:
            value = _real(value)
            object.__setattr__(instance, field.name, value)
        low, high = field.metadata["low"], field.metadata["high"]
        if type(value) is not type(field.default) or not low <= value <= high:
            raise ControlError(f"parameter {field.name}: {value!r} is not allowed; {allowed(field)}")


def allowed(field: dataclasses.Field[Any]) -> str:
    """What may be given for a parameter, in words."""
    if type(field.default) is bool:
        return "it is true or false"
    kind = "a whole number" if type(field.default) is int else "a number"
    return f"it is {kind} from {field.metadata['low']} to {field.metadata['high']} ({field.metadata['unit']})"


def build(declared: type[Parameters], values: Mapping[str, object]) -> Parameters:
    """Parameters with `values` in place of their defaults. ControlError names an unknown key or a refused value."""
    known = [field.name for field in dataclasses.fields(declared)]
    for key in values:
        if key not in known:
            raise ControlError(f"parameter {key!r} (= {values[key]!r}) is unknown; known: {', '.join(known) or 'none'}")
    make: Any = declared
    parameters: Parameters = make(**values)
    return parameters


def rows(declared: type[Parameters]) -> list[Row]:
    """The declaration, a row per parameter in the order declared."""
    found = []
    for field in dataclasses.fields(declared):
        default: Any = field.default
        found.append(Row(field.name, default, *(field.metadata[key] for key in _DECLARED)))
    return found


def declaration_fault(declared: object) -> str | None:
    """What is wrong with a parameter class, or None."""
    if not (isinstance(declared, type) and issubclass(declared, Parameters)):
        return "Parameters is not a subclass of cc.base.Parameters"
    if "__dataclass_fields__" not in vars(declared):
        return f"Parameters ({declared.__name__}) is not decorated with @dataclass(frozen=True)"
    for field in dataclasses.fields(declared):
        if any(key not in field.metadata for key in _DECLARED):
            return f"Parameters.{field.name} is not declared with parameter(default, low, high, unit, meaning)"
        if type(field.default) not in (bool, int, float):
            return f"Parameters.{field.name}: the default {field.default!r} is no number and no bool"
    try:
        declared()
    except Exception as error:
        return f"Parameters cannot be made from its defaults: {error}"
    return None


def _real(value: int) -> float:
    """float(value), or infinity (which is in no range) where there is no such float."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf

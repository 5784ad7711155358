"""From a name to a control: the built-in ones, installed ones (entry points of group "polyroce.cc"), and a user's file.

Nothing registers itself and nothing is imported before it is asked for. A built-in name wins over an entry point's.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import inspect
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from cc.base import SIGNALS, Control, Environment
from cc.errors import ControlError
from cc.parameters import Row, build, declaration_fault, rows

#: Entry-point group by which an installed distribution offers controls.
GROUP = "polyroce.cc"

BUILT_IN = {
    "fixed": "cc.fixed:Fixed",
    "dctcp": "cc.dctcp:Dctcp",
    "swift": "cc.swift:Swift",
    "nscc": "cc.nscc:Nscc",
    "credit": "cc.credit:CreditControl",
}

#: Arguments the engine gives, after self.
_CALLS = {
    "__init__": ("parameters", "env"),
    "on_ack": ("now", "ack"),
    "on_loss": ("now", "loss"),
    "on_timeout": ("now",),
    "on_idle": ("now", "idle"),
    "on_path_change": ("now",),
}


def names() -> list[str]:
    """Every name `resolve` knows: built-in ones first, then installed ones."""
    return [*BUILT_IN, *sorted(name for name in _installed() if name not in BUILT_IN)]


def resolve(spec: str) -> type[Control]:
    """The control class that `spec` names: a name of `names()`, or path/to/file.py:Class.

    Raises ControlError: an unknown name lists the known ones; a class that is no control says what it lacks.
    """
    if spec in BUILT_IN:
        module, _, attribute = BUILT_IN[spec].partition(":")
        built_in: type[Control] = getattr(importlib.import_module(module), attribute)
        return built_in
    path, colon, attribute = spec.rpartition(":")
    if colon and path.endswith(".py"):
        module_of_user = _load(Path(path))
        if not hasattr(module_of_user, attribute):
            found = ", ".join(_controls_of(module_of_user)) or "none"
            raise ControlError(f"{path} has no {attribute!r}; controls in it: {found}")
        return check_interface(getattr(module_of_user, attribute), spec)
    point = _installed().get(spec)
    if point is None:
        raise ControlError(
            f"congestion control {spec!r} is unknown; known: {', '.join(names())}; or path/to/file.py:Class"
        )
    try:
        loaded = point.load()
    except Exception as error:
        raise ControlError(f"entry point {spec} = {point.value} cannot be loaded: {_told(error)}") from error
    return check_interface(loaded, f"entry point {spec} = {point.value}")


def make(cls: type[Control], values: Mapping[str, object] | None, env: Environment) -> Control:
    """A control with `values` in place of its parameters' defaults.

    Raises ControlError for an unknown key, a value of the wrong type or out of range, and for a control that does not
    begin with a window or a rate to send at.
    """
    try:
        parameters = build(cls.Parameters, values or {})
    except ControlError as error:
        raise ControlError(f"congestion control {cls.name or cls.__name__}: {error}") from error
    control = cls(parameters, env)
    if not (env.segment <= control.window <= env.max_window or control.rate > 0):
        raise ControlError(
            f"congestion control {cls.name or cls.__name__} begins with window {control.window!r} and rate "
            f"{control.rate!r}; it needs a window from {env.segment} to {env.max_window} bytes, or a rate "
            "(does __init__ call super().__init__?)"
        )
    return control


def describe(cls: type[Control]) -> list[Row]:
    """The parameters of a control: name, default, low, high, unit, meaning."""
    return rows(cls.Parameters)


def check_interface(candidate: object, where: str) -> type[Control]:
    """`candidate` itself if the engine can use it. Otherwise ControlError says, after `where`, what is missing."""
    if not (isinstance(candidate, type) and issubclass(candidate, Control)):
        raise ControlError(f"{where} is not a subclass of cc.base.Control")
    faults = list(_faults(candidate))
    if faults:
        raise ControlError(f"{where} is no usable control: " + "; ".join(faults))
    return candidate


def _faults(cls: type[Control]) -> Iterator[str]:
    for name, arguments in _CALLS.items():
        call = f"{name}({', '.join(arguments)})"
        if getattr(cls, name) is getattr(Control, name):
            continue
        function = inspect.getattr_static(cls, name)
        if isinstance(function, (staticmethod, classmethod)) or not callable(function):
            yield f"{name} is not an ordinary method {call}"
        elif inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            yield f"{name} is async or a generator: calling {call} would run none of it"
        else:
            try:
                inspect.signature(function).bind(None, *arguments)
            except TypeError as error:
                yield f"{name} cannot be called as {call}: {error}"
            except ValueError:
                pass  # compiled without a signature: the compiler has checked it against Control
    declared: Any = cls.Parameters
    fault = declaration_fault(declared)
    if fault:
        yield fault
    needs: Any = cls.needs
    if isinstance(needs, str) or not isinstance(needs, (set, frozenset, tuple, list)) or not SIGNALS.issuperset(needs):
        yield f"needs = {needs!r} is not a set of {', '.join(sorted(SIGNALS))}"


def _installed() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


def _load(path: Path) -> ModuleType:
    """The user's file as a module, run once for a given path and content and never written to."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ControlError(f"{path} cannot be read: {error.strerror}") from error
    digest = hashlib.sha256(str(path.resolve()).encode() + b"\0" + source).hexdigest()
    name = f"cc_user_{digest[:16]}"
    module = sys.modules.get(name)
    if module is not None:
        return module
    module = ModuleType(name)
    module.__file__ = str(path)
    # Known before it runs: dataclasses look their module up by name.
    sys.modules[name] = module
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[name]
        raise ControlError(f"{path} cannot be loaded: {_told(error, str(path))}") from error
    return module


def _controls_of(module: ModuleType) -> list[str]:
    return sorted(
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Control) and value.__module__ == module.__name__
    )


def _told(error: Exception, path: str = "") -> str:
    """An error in a line; with the line of the file `path` if it came from there."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return f"line {error.lineno}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    place = f"line {lines[0]}: " if lines else ""
    return f"{place}{type(error).__name__}: {error}"

"""What mypy is to think of Cython's C types: they are numbers, and decorators change nothing."""

import builtins
from typing import TypeAlias, TypeVar

_T = TypeVar("_T")

bint: TypeAlias = bool
int: TypeAlias = builtins.int
longlong: TypeAlias = builtins.int
ulonglong: TypeAlias = builtins.int
double: TypeAlias = float
Py_ssize_t: TypeAlias = builtins.int
compiled: bool

def ccall(f: _T) -> _T: ...
def cfunc(f: _T) -> _T: ...
def inline(f: _T) -> _T: ...
def cclass(f: _T) -> _T: ...
def final(f: _T) -> _T: ...

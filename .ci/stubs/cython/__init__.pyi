"""What mypy is to think of Cython's C types: they are numbers, and decorators change nothing."""

from typing import TypeAlias, TypeVar

_T = TypeVar("_T")

bint: TypeAlias = bool
longlong: TypeAlias = int
ulonglong: TypeAlias = int
double: TypeAlias = float
Py_ssize_t: TypeAlias = int
compiled: bool

def ccall(f: _T) -> _T: ...
def cfunc(f: _T) -> _T: ...
def inline(f: _T) -> _T: ...
def cclass(f: _T) -> _T: ...
def final(f: _T) -> _T: ...

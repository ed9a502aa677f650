"""Finds Python code that is no test of an answer: it would pass whatever it is given, or fail whatever it is given."""

import ast
from importlib.util import find_spec

_MAIN = "__name__ == '__main__'"


def why_no_test(code: str) -> str:
    """Say why code tests nothing, or can never pass; empty if neither is known.

    Raises:
        SyntaxError, ValueError: it is no Python code.
    """
    body = ast.parse(code).body
    if missing := next((name for statement in body for name in _imported(statement) if not _is_here(name)), None):
        return (
            f"they import {missing!r}, which is not here; the answer's names are there without an import, and packages are "
            "with environment.options.packages: true"
        )
    if all(map(_does_nothing, body)):
        defined = [each.name for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
        named = f"only define {', '.join(defined)}" if defined else "are empty"
        return f"they check nothing: they {named}; call what checks, or write assert, at the top level"
    return ""


def _imported(statement: ast.stmt) -> list[str]:
    """The packages that a statement imports."""
    match statement:
        case ast.Import(names=names):
            return [each.name.partition(".")[0] for each in names]
        case ast.ImportFrom(module=str(module), level=0):
            return [module.partition(".")[0]]
    return []


def _is_here(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # of a module that has been imported, and does not say from where
        return True


def _does_nothing(statement: ast.stmt) -> bool:
    """Whether a statement only defines, imports or writes out a value, or is run by a program alone."""
    match statement:
        case ast.FunctionDef(args=takes) | ast.AsyncFunctionDef(args=takes):
            defaults = [*takes.defaults, *(each for each in takes.kw_defaults if each is not None)]
            return not statement.decorator_list and all(map(_is_written_out, defaults))
        case ast.ClassDef(body=body):  # which is run where it stands
            return not statement.decorator_list and all(map(_does_nothing, body))
        case ast.Import() | ast.ImportFrom() | ast.Pass():
            return True
        case ast.Assign(value=value) | ast.Expr(value=value):
            return _is_written_out(value)
        case ast.If(test=test, orelse=[]):
            return ast.unparse(test) == _MAIN
    return False


def _is_written_out(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True

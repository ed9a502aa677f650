"""The programs that run the model's Python code in the sandbox, and the command that runs them.

They read the code from standard input, so that it may be long, or from a file where the code itself reads standard input.
"""

import sys
import sysconfig
from pathlib import Path

RUN_CODE = """
import sys

def run():
    code = sys.stdin.read()
    sys.path[:0] = [""]
    names = {"__name__": "__main__"}
    try:
        tree = compile(code, "<code>", "exec", 0x400)  # ast.PyCF_ONLY_AST, without importing ast
        last = tree.body.pop() if tree.body and type(tree.body[-1]).__name__ == "Expr" else None
        exec(compile(tree, "<code>", "exec"), names)
        if last is not None:
            import _ast
            value = eval(compile(_ast.Expression(last.value), "<code>", "eval"), names)
            if value is not None:
                print(repr(value))
    except SystemExit:
        raise
    except BaseException as error:
        trace, line = error.__traceback__, getattr(error, "lineno", None)
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "<code>":
                line = trace.tb_lineno
            trace = trace.tb_next
        message = error.msg if isinstance(error, SyntaxError) else error
        sys.stdout.flush()
        print(f"{type(error).__name__}: {message}" + (f" (line {line})" if line else ""), file=sys.stderr)
        sys.exit(1)

run()
"""
"""Runs the code; if its last statement is an expression, prints the value, as an interactive session does.

It prints the last line of a traceback, with its place.
"""

RUN_ANSWER = "code = open('answer.py').read(); exec(compile(code, '<answer>', 'exec'), {'__name__': '__main__'})"
"""Runs the answer in the file ``answer.py`` as a program of its own, which reads standard input and prints."""


def python_command(program: str, packages: bool) -> list[str]:
    """The command that runs ``program``; with ``packages``, it can import what is installed beside asyncrl."""
    preamble = f"import sys; sys.path.append({sysconfig.get_path('purelib')!r})\n" if packages else ""
    return [str(Path(sys.executable).resolve()), "-I", "-S", "-B", "-c", preamble + program]


def python_folders(packages: bool) -> list[Path]:
    """The folders that the command must be able to read."""
    folders = [Path(sys.base_prefix), Path(sys.base_exec_prefix)]
    return list(dict.fromkeys([*folders, Path(sysconfig.get_path("purelib"))] if packages else folders))

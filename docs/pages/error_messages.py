"""Finds the messages of all errors that the code makes, without running it.

What is found: every call of a class that derives from :class:`asyncrl.core.errors.AsyncRLError`. A text is followed from where
the error is made to where it is written: through names that the function or the module sets, both sides of a choice, and the
parameters of functions that the same module calls. What depends on the run stands in angle brackets.
"""

import ast
import itertools
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, KeysView, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

BASE = "AsyncRLError"
PACKAGE = "asyncrl"
"""The folder that holds the product, in a checkout or where it is installed."""
BENCHMARKS = "bench"
"""The folder whose errors no run meets."""
UNKNOWN = "<...>"
"""What stands for what is not even called by a name."""
MOST = 6
"""The most texts that one argument may stand for."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, order=True)
class Message:
    """What an error can say.

    Attributes:
        kind: the class of the error.
        place: the key of the recipe, or the option, that is to blame; empty where there is none.
        problem: the cause.
        remedy: what to do about it; empty where the text says none.
    """

    kind: str
    place: str
    problem: str
    remedy: str


@dataclass
class Module:
    """A file, and what is looked up in it."""

    file: Path
    tree: ast.Module
    functions: dict[str, list[Function]] = field(default_factory=lambda: defaultdict(list))
    calls: dict[str, list[tuple[ast.Call, Function | None]]] = field(default_factory=lambda: defaultdict(list))
    constants: dict[str, list[ast.expr]] = field(default_factory=lambda: defaultdict(list))
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)


@dataclass(frozen=True)
class ErrorClass:
    """A class of errors.

    Attributes:
        meaning: the first paragraph of its docstring.
        parameters: those of its constructor.
        frames: what the constructor makes of them: texts in which each parameter stands in angle brackets.
    """

    name: str
    base: str
    meaning: str
    parameters: tuple[str, ...]
    frames: tuple[str, ...]


def read_modules(root: Path) -> list[Module]:
    """Read every file of the product below ``root``."""
    found = [Path(folder, name) for folder, _, names in os.walk(root / PACKAGE, followlinks=True) for name in names]
    return [_read(file) for file in sorted(found) if file.suffix == ".py" and BENCHMARKS not in file.parts]


def _read(file: Path) -> Module:
    module = Module(file, ast.parse(file.read_text(encoding="utf-8")))

    def visit(node: ast.AST, inside: Function | None) -> None:
        for child in ast.iter_child_nodes(node):
            module.parents[child] = node
            if isinstance(child, Function):
                module.functions[child.name].append(child)
                visit(child, child)
                continue
            if isinstance(child, ast.Call):
                module.calls[called(child)].append((child, inside))
            if inside is None and isinstance(child, ast.Assign | ast.AnnAssign):
                for name, value in _assigned(child):
                    module.constants[name].append(value)
            visit(child, inside)

    visit(module.tree, None)
    return module


def called(call: ast.Call) -> str:
    """The last name of what is called."""
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def error_classes(modules: Iterable[Module]) -> dict[str, ErrorClass]:
    """Every class of errors by its name, in the order in which bases come before what derives from them."""
    defined = {
        node.name: (module, node, [base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in node.bases])
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    }
    found: dict[str, ErrorClass] = {}

    def add(name: str, base: str) -> None:
        module, node, _ = defined[name]
        meaning = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
        parameters, frames = (found[base].parameters, found[base].frames) if base in found else ((), ())
        for made in node.body:
            if isinstance(made, ast.FunctionDef) and made.name == "__init__" and name != BASE:
                parameters, frames = tuple(each.arg for each in made.args.args[1:]), tuple(_frames(module, made))
        found[name] = ErrorClass(name, base, meaning, parameters, frames)
        for other, (_, _, bases) in defined.items():
            if name in bases and other not in found:
                add(other, name)

    add(BASE, "")
    return found


def _frames(module: Module, made: Function) -> Iterator[str]:
    """Yield what a constructor gives to that of its base."""
    for call in ast.walk(made):
        if isinstance(call, ast.Call) and called(call) == "__init__" and call.args:
            own = replace(module, calls=defaultdict(list))  # callers are looked at one by one
            yield from texts(own, call.args[0], made)


BY_CONTEXT = "RecipeError"
"""What a context of ``refusing`` makes of an error of the operating system."""


def messages(modules: Iterable[Module], classes: Mapping[str, ErrorClass]) -> Iterator[tuple[Module, ast.Call, list[Message]]]:
    """Yield each place where an error is made, with what it can say; nothing where it only hands on what another one said."""
    for module in modules:
        for name in classes.keys() & module.calls.keys():
            for call, inside in module.calls[name]:
                said = [_said(each, call, inside, classes[name]) for each in _by_caller(module, call, inside)]
                yield module, call, list(dict.fromkeys(itertools.chain(*said)))
        for call, inside in module.calls.get("refusing", ()):  # of asyncrl.core.files.file_errors
            doing, (otherwise, *_), *keys = (texts(module, each, inside) for each in call.args)
            place = keys[0][0] if keys else ""
            yield module, call, [Message(BY_CONTEXT, place, f"cannot {each}: <strerror>", otherwise) for each in doing]


def _by_caller(module: Module, call: ast.Call, inside: Function | None) -> list[Module]:
    """The module as it is for each caller of the function, since a problem and a remedy that one gives belong together."""
    if inside is None or len(_parameters(inside) & {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}) < 2:
        return [module]
    callers = [defaultdict(list, {**module.calls, inside.name: [each]}) for each in module.calls[inside.name]]
    return [replace(module, calls=each) for each in callers] or [module]


def _said(module: Module, call: ast.Call, inside: Function | None, kind: ErrorClass) -> list[Message]:
    given = dict(zip(kind.parameters, call.args, strict=False)) | {each.arg: each.value for each in call.keywords if each.arg}
    found = {name: texts(module, value, inside) for name, value in given.items()}
    if {"place", "problem", "remedy"} <= found.keys():
        if not any(map(_says_something, [*found["problem"], *found["remedy"]])):
            return []
        place, remedy = " or ".join(found["place"]), ", or: ".join(found["remedy"])
        return [Message(kind.name, place, problem, remedy) for problem in found["problem"]]
    whole = list(kind.frames) or [text for each in call.args for text in texts(module, each, inside)]
    for name, alternatives in found.items():
        if alternatives == [UNKNOWN]:
            continue
        mark = f"<{name.replace('_', ' ')}>"
        whole = [text.replace(mark, other) for text in whole for other in (alternatives if mark in text else alternatives[:1])]
    said = dict.fromkeys(text for text in whole if _says_something(text))
    return [Message(kind.name, "", *_parted(text)) for text in itertools.islice(said, MOST)]


def _parted(text: str) -> tuple[str, str]:
    problem, _, remedy = text.partition("; ")
    return problem, remedy


def _says_something(text: str) -> bool:
    """Whether a text has words of its own, beside what depends on the run."""
    outside = "".join(part.partition(">")[2] if at else part for at, part in enumerate(text.split("<")))
    return len([word for word in outside.split() if any(map(str.isalpha, word))]) > 1


def texts(module: Module, node: ast.expr, inside: Function | None, depth: int = 3) -> list[str]:
    """Every text that an expression can stand for, at most :data:`MOST`; what is not known is its name in angle brackets."""
    found = list(itertools.islice(dict.fromkeys(_texts(module, node, inside, depth)), MOST))
    return found or [_named(node)]


def _texts(module: Module, node: ast.expr, inside: Function | None, depth: int) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            every = [
                [part.value] if isinstance(part, ast.Constant) else _inserted(module, part.value, inside, depth)
                for part in parts
                if isinstance(part, ast.Constant | ast.FormattedValue)
            ]
            yield from ("".join(map(str, each)) for each in itertools.islice(itertools.product(*every), MOST))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            pairs = itertools.product(texts(module, left, inside, depth), texts(module, right, inside, depth))
            yield from ("".join(each) for each in itertools.islice(pairs, MOST))
        case ast.IfExp(body=body, orelse=other):
            yield from texts(module, body, inside, depth)
            yield from texts(module, other, inside, depth)
        case ast.Name(id=name) if depth:
            for value, where in _values(module, node, name, inside):
                yield from texts(module, value, where, depth - 1)


def _inserted(module: Module, node: ast.expr, inside: Function | None, depth: int) -> list[str]:
    """What stands in braces in a text: constants and texts as they are, all else by name."""
    if isinstance(node, ast.Constant | ast.IfExp):
        return texts(module, node, inside, depth)
    if isinstance(node, ast.Name):
        found = texts(module, node, inside, depth)
        if node.id.lstrip("_").isupper() or any(map(_says_something, found)):
            return found
    return [_named(node)]


def _values(module: Module, node: ast.AST, name: str, inside: Function | None) -> Iterator[tuple[ast.expr, Function | None]]:
    """Yield what a name stands for: what its function has set, else what callers in the module give, else the constant."""
    if inside is not None:
        own = list(_set_before(module, node, name, inside))
        taken = list(_parameters(inside))
        if own:
            yield from ((value, inside) for value in own)
            return
        if name in taken:
            at = [each for each in taken if each not in ("self", "cls")].index(name)
            for call, where in module.calls[inside.name]:
                given = {each.arg: each.value for each in call.keywords}
                if name in given:
                    yield given[name], where
                elif at < len(call.args):
                    yield call.args[at], where
            return
    yield from ((value, None) for value in module.constants.get(name, ()))


def _parameters(function: Function) -> KeysView[str]:
    """The names of a function's parameters, in order."""
    return dict.fromkeys(each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)).keys()


def _set_before(module: Module, node: ast.AST, name: str, inside: Function) -> Iterator[ast.expr]:
    """Yield what a function may have set a name to where ``node`` is reached: nothing that was set anew on every way there."""
    around = set(_blocks(module, node))
    found: list[ast.expr] = []
    for statement in sorted((each for each in ast.walk(inside) if isinstance(each, ast.stmt)), key=lambda each: each.lineno):
        values = [value for key, value in _assigned(statement) if key == name]
        if values and statement.lineno < getattr(node, "lineno", 0):
            found = values if next(_blocks(module, statement)) in around else [*found, *values]
    yield from found


def _blocks(module: Module, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield the series of statements that a node is in, from the inside outwards: whose they are, and which of them."""
    while node in module.parents:
        inner, node = node, module.parents[node]
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and any(each is inner for each in value) and isinstance(inner, ast.stmt):
                yield node, name


def _assigned(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield names that a statement sets, with the values; of several at once, each with its own."""
    match node:
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=value)
            | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
        ):
            yield name, value
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            yield from ((each.id, value) for each, value in zip(names, values, strict=False) if isinstance(each, ast.Name))
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.IfExp(body=ast.Tuple(elts=one), orelse=ast.Tuple(elts=other))):
            for each, *both in zip(names, one, other, strict=False):
                if isinstance(each, ast.Name):
                    yield from ((each.id, value) for value in both)


def _named(node: ast.expr) -> str:
    """An expression that is not known before the run: its last name, in angle brackets."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return f"<{name.strip('_').replace('_', ' ').lower()}>"
        case ast.Call(args=[first, *_]):
            return _named(first)
        case (
            ast.Call(func=ast.Attribute(value=value))
            | ast.Subscript(value=value)
            | ast.BinOp(left=value)
            | ast.Starred(value=value)
        ):
            return _named(value)
        case _:
            return UNKNOWN

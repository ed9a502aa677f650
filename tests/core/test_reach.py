"""Whatever the product reaches into is in a register, and whatever is in a register is in the code and in the package reached."""

import ast
import sysconfig
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from reach_scan import gone, scan, unregistered

from asyncrl.core.reach import Reach
from docs.pages.internals import REGISTERS, main

ROOT = Path(__file__).parents[2]
ENTRIES = list(chain.from_iterable(REGISTERS.values()))
COMPILED = {"torch.distributed.distributed_c10d.ProcessGroupGloo._Options"}
"""What neither a module nor a stub declares."""
PACKAGES = [Path(sysconfig.get_path(each)) for each in ("purelib", "platlib", "stdlib")]


def test_every_reach_is_registered() -> None:
    left = unregistered(scan(ROOT), ENTRIES)
    told = "\n".join(f"{each.file}:{each.line}: {each.name}{' is replaced' * each.replaced}" for each in left)
    assert not left, f"take the public way, or add these to patches.py of their room:\n{told}"


def test_every_entry_is_in_the_code_and_has_its_test() -> None:
    assert list(gone(ROOT, ENTRIES)) == []


def test_the_committed_page_is_current(tmp_path: Path) -> None:
    main([str(tmp_path / "internals.md")])
    committed = ROOT / "docs" / "reference" / "internals.md"
    assert (tmp_path / "internals.md").read_text() == committed.read_text(), "run `python -m docs.pages.internals`"


@pytest.mark.parametrize(
    ("code", "reached"),
    [
        ("from vllm.v1.engine import core", "vllm.v1.engine.core"),
        ("from others._inside import thing", "others._inside.thing"),
        ("import others\nothers.thing = None", "others.thing"),
        ("from others import Thing\nThing.method = print", "others.Thing.method"),
        ("import others\nsetattr(others, NAME, None)", "others.[NAME]"),
        ("import others\ndef work(thing: 'others.Thing') -> None:\n    thing.part.method = print", "others.Thing.part.method"),
        ("import others\nclass Ours(others.Thing):\n    def work(self):\n        self._hidden()", "others.Thing._hidden"),
        ("import others\nclass Ours(others.Thing):\n    def work(self):\n        super()._hidden()", "others.Thing._hidden"),
        (
            "import others\nclass Ours:\n    def __init__(self, it: others.It):\n        self.it = it\n"
            "    def work(self):\n        self.it.step = print",
            "others.It.step",
        ),
        ("import others\nmade = others.Thing()\nmade._hidden()", "others.Thing._hidden"),
        ("def work(thing):\n    thing._hidden()", "._hidden"),
        ("def work(thing):\n    thing.method = print", ".method"),
        ("import others\ngetattr(others, '_hidden')", "others._hidden"),
        ("def work(thing):\n    vars(thing)['method'] = print", ".[method]"),
        ("WORKER = 'vllm.v1.worker.cpu_worker.CPUWorker'", "vllm.v1.worker.cpu_worker.CPUWorker"),
        ("CHANGE = 'UPDATE runs SET name = ?'", "SQL.runs"),
    ],
)
def test_a_reach_that_nobody_registered_is_found(code: str, reached: str, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "module.py").write_text(code)
    (found,) = unregistered(scan(tmp_path, ["ours"]), ENTRIES)
    assert (found.file, found.name) == ("ours/module.py", reached)
    entry = Reach(files=(found.file,), names=(reached,), why="", test="", needless="")
    assert unregistered([found], [entry]) == []


@pytest.mark.parametrize(
    "code",
    [
        "import others\nothers.thing()",
        "class Ours:\n    def __init__(self):\n        self._own = 1\ndef work(it):\n    it._own = 2",
        "def work(it):\n    return it._replace(a=1)",
        "import os\nos._exit(1)",
        "MAKE = 'CREATE TABLE kept (a)'\nREAD = 'SELECT a FROM kept'",
        "import others\ndef work(it: others._Hidden) -> None: ...",
    ],
)
def test_what_is_our_own_and_what_is_documented_is_no_reach(code: str, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "module.py").write_text(code)
    assert scan(tmp_path, ["ours"]) == []


def test_an_entry_for_what_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("import others")
    entry = Reach(files=("module.py", "missing.py"), names=("others._hidden",), why="", test="module.py::test_it", needless="")
    assert list(gone(tmp_path, [entry])) == [
        "missing.py, which is said to reach others._hidden, is not there",
        "no file of module.py, missing.py reaches others._hidden any more",
        "module.py reaches nothing of others._hidden any more",
        "there is no test module.py::test_it",
    ]


@pytest.mark.parametrize("project", [each for each in REGISTERS if each != "MLflow"])
def test_what_is_reached_is_still_where_it_was(project: str) -> None:
    """Nothing is imported, which would take a minute and change this process."""
    if project == "OpenEnv":
        pytest.importorskip("openenv")  # which has an environment of its own
    moved, elsewhere, packages = [], set(), set()
    for name in chain.from_iterable(each.names for each in REGISTERS[project]):
        if name.startswith(".") or "." not in name or name.endswith("]"):
            continue  # the code does not say whose attribute it is, or it is added by us
        packages.add(name.partition(".")[0])
        file, rest = source_of(name)
        first, *others = rest.split(".")
        there = set() if file is None else words(file)
        if file is None or (rest and not there & {first, "*"}):
            moved.append(name)
        elif name not in COMPILED:
            elsewhere |= {*others[-1:]} - there  # of an object that the module has from another one
    for file in chain.from_iterable(sources(each) for each in sorted(packages)):
        if not elsewhere:
            break
        text = file.read_text(encoding="utf-8")
        elsewhere = {each for each in elsewhere if each not in text}
    assert moved + sorted(elsewhere) == []


def sources(package: str) -> Iterator[Path]:
    """Yield the modules of a package, and the stubs of those that are not written in Python."""
    for place in PACKAGES:
        yield from (each for each in (place / package).rglob("*.py*") if each.suffix in (".py", ".pyi"))


def source_of(name: str) -> tuple[Path | None, str]:
    """Return the file of the module in which a name begins, and what of the name is in it."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        for place in PACKAGES:
            below = place.joinpath(*parts[:length])
            for file in (below.with_suffix(".py"), below / "__init__.py"):
                if file.is_file():
                    return file, ".".join(parts[length:])
    return None, name


def words(file: Path) -> set[str]:
    """Return the names that a module uses or declares."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.arg(arg=name):
                found.add(name.rpartition(".")[2])
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Constant(value=str(value)):
                found.add(value)
    return found

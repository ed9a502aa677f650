"""Folders stay small, files short, and imports run in no circle, neither of modules nor of the folders beside each other."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("buffers", "generators", "learners", "recipes")
PRODUCT = ("asyncrl", *ROOMS)
MOST_FILES, MOST_LINES = 25, 400


def python_files(*folders):
    return [file for folder in folders for file in sorted(folder.rglob("*.py"))]


def crowded_folders(*folders):
    held = defaultdict(int)
    for file in python_files(*folders):
        held[file.parent] += 1
    return {str(folder): files for folder, files in held.items() if files > MOST_FILES}


def long_files(*folders):
    lines = {str(file): len(file.read_text().splitlines()) for file in python_files(*folders)}
    return {file: count for file, count in lines.items() if count > MOST_LINES}


def for_types_alone(node):
    """Whether a statement is ``if TYPE_CHECKING``."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def statements(tree):
    """Yield all nodes of a tree that run, those of functions included."""
    waiting = [tree]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if not for_types_alone(child):
                yield child
                waiting.append(child)


def imports(root, packages):
    """The modules of ``packages``, folders of ``root``, and which of them each imports."""
    modules = {}
    for file in python_files(*(root / package for package in packages)):
        path = file.relative_to(root).with_suffix("")
        name = ".".join(path.parent.parts if path.name == "__init__" else path.parts)
        modules[f"asyncrl.{name}" if path.parts[0] in ROOMS else name] = file
    found = {}
    for module, file in modules.items():
        found[module] = set()
        for node in statements(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert not node.level, f"{file} imports from a relative place"
                inside = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in modules else node.module for name in inside]
            found[module] |= {name for name in names if name in modules and name != module}
    return found


def circles(graph):
    """The circles of a graph: sets of nodes each of which leads to each other (Tarjan 1972)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            circle = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(circle) > 1:
                found.append(sorted(circle))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def circles_of_folders(graph):
    """The circles among the folders of one folder, where all that a folder holds counts as one."""
    folders = {module.rpartition(".")[0] for module in graph} - {""}
    found = []
    for parent in sorted({folder.rpartition(".")[0] for folder in folders} - {""}):  # packages import contracts of asyncrl.core
        beside = defaultdict(set)
        for module, others in graph.items():
            for other in others:
                one, another = below(parent, module), below(parent, other)
                if one != another and {one, another} <= folders:
                    beside[one].add(another)
        found += circles(beside)
    return found


def below(parent, module):
    """The folder or module right below ``parent`` that ``module`` is in, or is; empty if it is elsewhere."""
    rest = module.removeprefix(f"{parent}.")
    return "" if rest == module else f"{parent}.{rest.partition('.')[0]}"


def test_no_folder_is_crowded():
    assert crowded_folders(*(ROOT / folder for folder in (*PRODUCT, "tests"))) == {}


def test_no_file_is_long():
    assert long_files(*(ROOT / package for package in PRODUCT)) == {}


def test_no_imports_run_in_a_circle():
    graph = imports(ROOT, PRODUCT)
    assert circles(graph) == []
    # Losses call the user's functions, and what checks these makes rows as losses do.
    assert circles_of_folders(graph) in ([], [["asyncrl.learners.algorithm", "asyncrl.learners.custom"]])


@pytest.fixture
def tree(tmp_path):
    """Writes files of a made package, by path."""

    def write(files):
        for path, text in files.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return write


def test_a_crowded_folder_and_a_long_file_are_found(tree):
    root = tree({f"made/full/file_{number}.py": "" for number in range(26)} | {"made/long.py": "pass\n" * 401})
    assert crowded_folders(root) == {str(root / "made/full"): 26}
    assert long_files(root) == {str(root / "made/long.py"): 401}


@pytest.mark.parametrize(
    ("files", "of_modules", "of_folders"),
    [
        (
            {"made/a.py": "import made.b", "made/b.py": "from made import c", "made/c.py": "from made.a import x"},
            [["a", "b", "c"]],
            [],
        ),
        ({"made/a.py": "def f():\n    from made.b import x", "made/b.py": "import made.a"}, [["a", "b"]], []),
        ({"made/a.py": "if TYPE_CHECKING:\n    from made.b import x", "made/b.py": "import made.a"}, [], []),
        ({"made/a.py": "from made.b import x", "made/b.py": "import os"}, [], []),
        (
            {
                "made/p/a.py": "from made.q.c import x",
                "made/q/d.py": "from made.p.b import y",
                "made/p/b.py": "",
                "made/q/c.py": "",
            },
            [],
            [["p", "q"]],
        ),
        ({"made/p/a.py": "from made.q.c import x", "made/q/c.py": "", "made/top.py": "from made.p.a import x"}, [], []),
    ],
)
def test_a_circle_is_found(tree, files, of_modules, of_folders):
    graph = imports(tree(files), ["made"])
    assert circles(graph) == [[f"made.{name}" for name in circle] for circle in of_modules]
    assert circles_of_folders(graph) == [[f"made.{name}" for name in circle] for circle in of_folders]


def test_no_two_files_of_tests_have_one_name():
    """pytest imports them by their names alone, and reports an error for the second."""
    names = [file.name for file in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))

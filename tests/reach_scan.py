"""Finds, in source code, where it depends on what other packages keep to themselves.

Nothing is imported: what an expression is follows from imports, annotations, assignments and constructor calls in its file.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from asyncrl.core.reach import Reach

PRODUCT = ("asyncrl", "buffers", "generators", "learners", "recipes")
INTERNAL = (
    *("vllm.v1", "vllm.model_executor", "vllm.distributed.device_communicators", "vllm.platforms.cpu", "vllm.ir"),
    *("vllm.lora.lora_model", "vllm.lora.model_manager", "vllm.lora.peft_helper", "vllm.lora.punica_wrapper"),
    *("megatron.core.dist_checkpointing.strategies", "mlflow.tracing.client", "mlflow.protos"),
)
"""Modules without an underscore in their names that their projects do not document for users."""
DOCUMENTED = {
    # Standard library: attributes that its documentation says are to be set or called.
    *("sys.stdin", "sys.stdout", "sys.stderr", "os.environ", "os._exit", "sys._current_frames"),
    *("ssl.SSLContext.minimum_version", "ssl.SSLContext.check_hostname", "ssl.SSLContext.verify_mode"),
    *("logging.LogRecord.msg", "logging.LogRecord.args", "threading.Timer.daemon", "argparse.Namespace"),
    *(".__cause__", ".__class__", ".__dict__", ".__module__", ".args", ".filename", ".argtypes"),
    *("._replace", "._asdict", "._fields"),
    # Columns of rich, tokenizers, templates, arguments completed by shtab, instructions of llvmlite, Megatron's set of groups.
    *(".justify", ".pre_tokenizer", ".decoder", ".filters", ".complete", ".response_template", ".align"),
    "megatron.core.process_groups_config.ProcessGroupCollection",
    # Our own marks on functions and classes of users.
    *(".[_MARK]", ".[REGISTERED]"),
}
"""What looks like a reach and is documented by its owner: whole names, classes all of whose attributes are, and attributes."""

_TABLES = re.compile(r"\b(?:FROM|UPDATE|INTO|JOIN)\s+(\w+)")
_MADE = re.compile(r"\bCREATE (?:VIRTUAL )?TABLE (?:IF NOT EXISTS )?(\w+)")
_STATEMENT = re.compile(r"\s*(?:SELECT|UPDATE|INSERT|DELETE)\s")
_MODULE = re.compile(r"[a-z_]\w*(?:\.\w+)+")


class Found(NamedTuple):
    """One place: file below the root, line, what is reached (as :attr:`Reach.names` has it), and whether it is replaced."""

    file: str
    line: int
    name: str
    replaced: bool

    def is_covered_by(self, reach: Reach) -> bool:
        """Whether the entry stands for this place."""
        if self.file not in reach.files:
            return False
        return self.name in reach.names or (not self.replaced and any(self.name.startswith(f"{each}.") for each in reach.names))


def scan(root: Path, folders: Iterable[str] = PRODUCT) -> list[Found]:
    """Find all places in the Python files of some folders below ``root``."""
    trees = {
        str(path.relative_to(root)): ast.parse(path.read_text(encoding="utf-8"))
        for folder in folders
        for path in sorted((root / folder).rglob("*.py"))
        if path.name != "patches.py"  # a register
    }
    own: set[str] = set()
    tables: set[str] = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            own |= set(_declared(node))
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                tables |= set(_MADE.findall(node.value))
    found: set[Found] = set()
    for file, tree in trees.items():
        first = _Scan(file, tree, own, tables)
        first.visit(tree)
        second = _Scan(file, tree, own, tables, first.of_self)  # now it is known what attributes of `self` are
        second.visit(tree)
        found |= second.found
    return sorted(found)


def unregistered(found: Iterable[Found], register: Iterable[Reach]) -> list[Found]:
    """Return the places that no entry stands for."""
    entries = list(register)
    return [each for each in found if not any(map(each.is_covered_by, entries))]


def gone(root: Path, register: Iterable[Reach]) -> Iterator[str]:
    """Say which entries name files, things in them or tests that are not there."""
    for reach in register:
        texts = {file: (root / file).read_text(encoding="utf-8") for file in reach.files if (root / file).is_file()}
        words = {name: re.compile(rf"\b{re.escape(last_word(name))}\b") for name in reach.names}
        for file in [file for file in reach.files if file not in texts]:
            yield f"{file}, which is said to reach {', '.join(reach.names)}, is not there"
        for name, word in words.items():
            if not any(map(word.search, texts.values())):
                yield f"no file of {', '.join(reach.files)} reaches {name} any more"
        for file, text in texts.items():
            if not any(word.search(text) for word in words.values()):
                yield f"{file} reaches nothing of {', '.join(reach.names)} any more"
        file, _, test = reach.test.partition("::")
        path = root / file
        if not path.is_file() or not re.search(rf"^\s*(async )?def {test}\(", path.read_text(encoding="utf-8"), re.MULTILINE):
            yield f"there is no test {reach.test}"


def last_word(name: str) -> str:
    """Return the last part of a name: that of the attribute that is reached."""
    return re.split(r"[.\[]", name.rstrip("]"))[-1].strip("'")


def _declared(node: ast.AST) -> Iterator[str]:
    """Yield the names of attributes, functions and variables that a node declares."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
        yield node.attr


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


class _Scan(ast.NodeVisitor):
    """Visits one file. ``found`` are its places; ``of_self`` says, by class, what attributes of ``self`` are."""

    def __init__(
        self, file: str, tree: ast.Module, own: set[str], tables: set[str], of_self: dict[str, dict[str, str]] | None = None
    ) -> None:
        self._file, self._own, self._tables = file, own, tables
        self._here = {name for node in ast.walk(tree) for name in _declared(node)}
        self._made = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        self._scopes: list[dict[str, str]] = [{}]
        self._arguments: list[set[str]] = [set()]
        self._classes: list[str] = [""]
        self._bases: dict[str, str] = {}
        self.of_self: dict[str, dict[str, str]] = of_self or {}
        self.found: set[Found] = set()

    def _add(self, node: ast.AST, name: str, *, replaced: bool = False) -> None:
        owner, _, attribute = name.rpartition(".")
        if not {name, owner, f".{attribute}"} & DOCUMENTED:
            self.found.add(Found(self._file, getattr(node, "lineno", 0), name, replaced))

    # What names stand for.

    def _resolve(self, node: ast.expr | None) -> str:
        """Return the dotted name of what an expression is, or whose instance; empty if it is ours or unknown."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                return self._resolve(ast.parse(node.value, mode="eval").body)
            except SyntaxError:
                return ""
        if isinstance(node, ast.BinOp):  # a union in an annotation
            return self._resolve(node.left) or self._resolve(node.right)
        if isinstance(node, ast.Name):
            return next((scope[node.id] for scope in reversed(self._scopes) if node.id in scope), "")
        if isinstance(node, ast.Attribute):
            if _is_self(node.value):
                return self.of_self.get(self._classes[-1], {}).get(node.attr, "")
            before = self._resolve(node.value)
            return f"{before}.{node.attr}" if before else ""
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id == "super":
                return self._bases.get(self._classes[-1], "")
            made = self._resolve(node.func)
            return made if made.rpartition(".")[2][:1].isupper() else ""
        return ""

    def _annotated(self, annotation: ast.expr | None) -> str:
        name = self._resolve(annotation)
        return "" if name.partition(".")[0] in ("typing", "collections") else name

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._imported(node, alias.name, alias.asname or alias.name.partition(".")[0], alias.name)
            if not alias.asname and alias.name.partition(".")[0] not in PRODUCT:
                self._scopes[-1][alias.name.partition(".")[0]] = alias.name.partition(".")[0]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._imported(node, node.module or "", alias.asname or alias.name, f"{node.module}.{alias.name}")

    def _imported(self, node: ast.AST, module: str, known_as: str, name: str) -> None:
        if module.partition(".")[0] in (*PRODUCT, "__future__"):
            self._scopes[-1][known_as] = ""
            return
        self._scopes[-1][known_as] = name
        if any(map(_is_private, name.split("."))) or self._is_internal(name):
            self._add(node, name)

    def _is_others(self, name: str) -> bool:
        return _is_private(name) and name not in self._own

    @staticmethod
    def _is_internal(name: str) -> bool:
        return any(name == each or name.startswith(f"{each}.") for each in INTERNAL)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._bases[node.name] = next(filter(None, map(self._resolve, node.bases)), "")
        self._scopes[-1][node.name] = ""
        self._classes.append(node.name)
        self.of_self.setdefault(node.name, {})
        self.generic_visit(node)
        self._classes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.decorator_list):
            self.visit(default)
        self._scopes.append({each.arg: self._annotated(each.annotation) for each in arguments})
        self._arguments.append({each.arg for each in arguments})
        for statement in node.body:
            self.visit(statement)
        self._scopes.pop()
        self._arguments.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._scopes.append({each.arg: "" for each in node.args.args})
        self.visit(node.body)
        self._scopes.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._bind(node.target, self._annotated(node.annotation) or self._resolve(node.value))
        self.visit(node.target)
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for one, value in zip(target.elts, node.value.elts, strict=False):
                    self._bind(one, self._resolve(value))
            else:
                self._bind(target, self._resolve(node.value))
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        if isinstance(node.iter, ast.Tuple):
            self._bind(node.target, next(filter(None, map(self._resolve, node.iter.elts)), ""))
        self.generic_visit(node)

    def _bind(self, target: ast.expr, name: str) -> None:
        if isinstance(target, ast.Name):
            self._scopes[-1][target.id] = name
        elif isinstance(target, ast.Attribute) and _is_self(target.value) and name:
            self.of_self.setdefault(self._classes[-1], {})[target.attr] = name

    # What is reached.

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        owner = self._resolve(node.value)
        if not isinstance(node.ctx, ast.Load):
            if not _is_self(node.value) and (owner or node.attr not in self._own):
                self._add(node, f"{owner}.{node.attr}", replaced=True)
        elif _is_private(node.attr):
            if owner:
                self._add(node, f"{owner}.{node.attr}")
            elif _is_self(node.value):
                base = self._bases.get(self._classes[-1], "")
                if base and node.attr not in self._here:
                    self._add(node, f"{base}.{node.attr}")
            elif self._is_others(node.attr):
                self._add(node, f".{node.attr}")

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Name) or len(node.args) < 2:
            return
        owner, name = node.args[:2]
        names = {each.id for each in (owner, name) if isinstance(each, ast.Name)}
        ours = bool(names & self._made) or (len(names) == 2 and names <= self._arguments[-1])  # a class of ours, any attribute
        if node.func.id in ("setattr", "delattr") and not ours:
            self._add(node, f"{self._resolve(owner)}.[{ast.unparse(name)}]", replaced=True)
        elif node.func.id == "getattr" and isinstance(name, ast.Constant) and self._is_others(str(name.value)):
            self._add(node, f"{self._resolve(owner)}.{name.value}")

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """An attribute by way of the dictionary of an object."""
        self.generic_visit(node)
        inside = isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name) and node.value.func.id == "vars"
        inside = inside or (isinstance(node.value, ast.Attribute) and node.value.attr == "__dict__")
        if inside and isinstance(node.slice, ast.Constant):
            replaced, name = not isinstance(node.ctx, ast.Load), str(node.slice.value)
            if replaced or _is_private(name):
                self._add(node, f".[{name}]", replaced=replaced)

    def visit_Constant(self, node: ast.Constant) -> None:
        if not isinstance(node.value, str):
            return
        if _MODULE.fullmatch(node.value) and self._is_internal(node.value):
            self._add(node, node.value)
        elif _STATEMENT.match(node.value):
            for table in set(_TABLES.findall(node.value)) - self._tables:
                if not table.startswith("sqlite_"):
                    self._add(node, f"SQL.{table}")

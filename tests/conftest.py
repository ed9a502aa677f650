"""What holds for all tests."""

import atexit
import fcntl
import gc
import importlib
import os
import signal
import sys
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings

from asyncrl.core.process.long_import import long_import

# No test is about time: on a machine with other work an example may take any number of milliseconds. What passed once
# passes again, as each run has the same examples; `--hypothesis-profile=exploring` looks for others.
UNTIMED = settings(deadline=None, suppress_health_check=(HealthCheck.too_slow,))
settings.register_profile("exploring", UNTIMED)
settings.register_profile("repeated", UNTIMED, derandomize=True)
settings.load_profile("repeated")

# Shells have what they start in the background ignore interrupts, and its children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have all processes but one begin with a share of the files with tests that may take longer than others.

    A file stays whole, since its tests may share what takes long.

    At first, ``--dist worksteal`` gives as many consecutive tests to each process. Long ones are stolen last: in one process they
    would follow one another, and wait for processes and deadlines, while the cores idle. In all of them whole runs would hold
    each other up until their deadlines.
    """
    usual = float(config.getini("timeout"))

    def limit(of_file: list[pytest.Item]) -> float:
        markers = (item.get_closest_marker("timeout") for item in of_file)
        return max(usual, *(usual if marker is None else marker.args[0] for marker in markers))

    all_files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        all_files.setdefault(item.path, []).append(item)
    files = sorted((each for each in all_files.values() if limit(each) > usual), key=limit, reverse=True)
    longer = {id(item) for of_file in files for item in of_file}
    others = [item for item in items if id(item) not in longer]
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    sharing = max(1, processes - 1)
    count, ordered = len(items), list[pytest.Item]()
    for process in range(processes):
        end = len(ordered) + (count - len(ordered)) // (processes - process)
        for of_file in files[process::sharing] if process < sharing else []:
            ordered += of_file
        usual_ones = max(0, end - len(ordered))
        ordered += others[:usual_ones]
        del others[:usual_ones]
    items[:] = [*ordered, *others]


def _import_share(paths: Iterable[str]) -> None:
    """Import a share of the tests' modules, so that each is compiled in one of the processes, and read by the others."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    files = sorted(file for path in paths for file in Path(path).rglob("test_*.py"))
    for file in files[process::processes] if processes > 1 else ():
        if sys.path[0] != str(file.parent):  # as pytest does
            sys.path.insert(0, str(file.parent))
        with suppress(Exception, pytest.skip.Exception):  # pytest will meet it, and tell
            importlib.import_module(file.stem)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Look for no garbage while everything is imported, and never in what that has made: each search would take a second.

    What pytest makes of the tests' modules is kept, whatever the environment says, since compiling them takes most of the time.
    """
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        with long_import():
            _import_share(session.config.args)
            result = yield
    finally:
        sys.dont_write_bytecode = kept
    gc.freeze()
    atexit.register(gc.unfreeze)  # at exit, libraries tell of what is left
    return result


def pytest_collection_finish() -> None:
    """Have torch use one thread: two processes run tests side by side, and threads that wait for each other spin."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keep how the tests ended, for ``.ci/run``."""
    cache = getattr(session.config, "cache", None)
    if cache is not None and not hasattr(session.config, "workerinput"):
        cache.set("asyncrl/ended", int(exitstatus))


def pytest_runtest_setup() -> None:
    """Have each test get the same random numbers from torch, whatever ran before it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


class TrialHere:
    """Tries a model in this process, in place of the process of a :class:`ModelCheck`."""

    def ask(self, answer: type[Any], request: bytes, seconds: float) -> Any:
        from asyncrl.run.dry_run.model_trial import asked, outcome_of

        with ThreadPoolExecutor(1) as thread:  # the test may have an event loop of its own
            return msgspec.json.decode(msgspec.json.encode(thread.submit(outcome_of, asked(request)).result()), type=answer)

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture
def tried_apart() -> None:
    """Have models be tried in processes of their own, as for a user; see :func:`tried_here`."""


@pytest.fixture(autouse=True)
def tried_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are tried in this process, which has imported what each new one would import for seconds."""
    checking = sys.modules.get("asyncrl.run.dry_run.model_check")
    if checking is not None and "tried_apart" not in request.fixturenames:
        monkeypatch.setattr(checking.ModelCheck, "_start", lambda check: TrialHere())


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """``learner.dtype: auto`` is float32 everywhere: measuring takes a process that imports torch, for each shape of a model.

    ``tests/run/recipe/test_data_type.py`` measures, and so do whole runs.
    """
    automatic = sys.modules.get("asyncrl.run.recipe.automatic")
    if automatic is not None:
        monkeypatch.setattr(automatic, "bfloat16_share", lambda shape: 2.0)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model that whole runs begin with: they only read it, and making it takes seconds, once for all processes."""
    from whole_run import small_model

    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with (shared / "tiny-model.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return small_model(shared / "tiny-model")

"""What is raised to a Python program: by refusals, by runs that end early, and by runs that lack what is asked of them."""

import asyncio
import contextlib
import io
import json
import linecache
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString

import asyncrl
from asyncrl.api import driver_process, launching
from asyncrl.api.driver_process import Ended
from asyncrl.api.following import completed
from asyncrl.api.recipes import override_texts
from asyncrl.cli.driving.messages import Began, LaunchRequest
from asyncrl.cli.driving.start import Driver, start_driver
from asyncrl.cli.outcome import ExitCode
from asyncrl.core.errors import ComponentFailed, RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.event_log import EventLog
from asyncrl.run.measures.events import NoteSaid
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.recipe.compose import compose

LIGHT = """
import sys
before = set(sys.modules)
import asyncrl
heavy = {"torch", "ray", "vllm", "transformers", "megatron", "mlflow", "hydra", "pyarrow", "cloudpickle"}
print(sorted((heavy | {"numpy", "msgspec", "yaml"}) & set(sys.modules)))
for name in asyncrl.__all__:
    getattr(asyncrl, name)
print(sorted(heavy & set(sys.modules)))
import asyncrl.run.control, asyncrl.run.host.stopping  # what run.log, run.finish and run.stop import
print({"ray", "torch"} & set(sys.modules))
"""


def test_import_is_light_and_everything_offered_is_there():
    shown = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=60, check=True).stdout
    assert shown == "[]\n[]\nset()\n"
    assert set(asyncrl.__all__) <= set(dir(asyncrl))
    with pytest.raises(AttributeError, match="module 'asyncrl' has no attribute 'lunch'"):
        asyncrl.lunch  # noqa: B018


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]))


def test_a_refused_recipe_is_raised_with_everything_that_is_wrong(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(asyncrl.RecipeError) as refused:
        asyncrl.launch("quickstart", ["learner.lrr=1", "steps=0"])
    assert (refused.value.place, refused.value.problem) == ("steps", "0 does not fit")
    assert refused.value.__notes__ == ["learner.lrr: unknown key; did you mean `learner.lr`?"]
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().err == ""


CHANGES_OF_RECIPE = {
    "learner": {"lr": 1e-4},
    "generators.count": np.int64(3),
    "name": "named",
    "run_dir": Path("runs/here"),
}


def composed_of(recipe: object, overrides: object, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """What the process that drives a run would compose."""
    composed = []

    def drive(request: LaunchRequest, watch: object) -> Ended:
        composed.append(compose(str(request.recipe), request.overrides))
        raise KeyboardInterrupt

    monkeypatch.setattr(launching, "drive", drive)
    with pytest.raises(KeyboardInterrupt):
        asyncrl.launch(recipe, overrides)
    return composed[0]


def test_a_recipe_and_its_changes_may_be_dictionaries(monkeypatch: pytest.MonkeyPatch):
    recipe = composed_of("quickstart", CHANGES_OF_RECIPE, monkeypatch)
    assert (recipe.learner.lr, recipe.generators.count, recipe.name, recipe.run_dir) == (1e-4, 3, "named", "runs/here")
    assert composed_of(Path("quickstart"), ["learner.lr=1e-4"], monkeypatch).learner.lr == 1e-4
    written = {"defaults": ["quickstart", "_self_"], "steps": 7, "learner": {"lr": 1e-5}, "run_dir": Path("runs/here")}
    recipe = composed_of(written, {"learner.lr": 2e-5}, monkeypatch)
    assert (recipe.steps, recipe.learner.lr, recipe.run_dir) == (7, 2e-5, "runs/here")


@pytest.mark.parametrize(
    "value",
    [
        *(
            None,
            True,
            False,
            3,
            -1,
            1e-5,
            1e300,
            float("inf"),
            "",
            "true",
            "null",
            "3",
            "a b",
            "it's",
            "back\\slash",
            "a\\'b",
            "\\",
        ),
        *("a,b", "[a]", "{a: b}", "key=value", "a\nb", "Straße", "~", "x${y", [], [1, [2, "a"]], [{"a": "b"}], (1, 2)),
        [{"a b": 1, "c:d": [], "e,f": "g", "h\\i": None}],
    ],
)
def test_a_value_in_a_dictionary_is_what_the_override_sets(value: object):
    (text,) = override_texts({"key": value})
    (parsed,) = OverridesParser.create().parse_overrides([text])
    given = parsed.value()
    assert json.dumps(given.text if isinstance(given, QuotedString) else unquoted(given)) == json.dumps(value)


def unquoted(value: object) -> object:
    match value:
        case QuotedString():
            return value.text
        case dict():
            return {key: unquoted(each) for key, each in value.items()}
        case list():
            return [unquoted(each) for each in value]
    return value


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (
            lambda: asyncrl.launch("quickstart", "steps=3"),
            r"overrides is the text 'steps=3'; give a list of texts, \['steps=3'\]",
        ),
        (lambda: asyncrl.launch("quickstart", [3]), r"overrides is \[3\]; give a list of texts"),
        (lambda: asyncrl.launch("quickstart", 3), "overrides is 3; give a list of texts"),
        (
            lambda: asyncrl.launch("quickstart", {"learner": {"lr": 1j}}),
            "learner.lr: 1j cannot stand in a recipe",
        ),
        (lambda: asyncrl.launch("quickstart", {3: 1}), "3 is no key"),
        (lambda: asyncrl.launch(3), "3 is no recipe"),
        (lambda: asyncrl.launch({"steps": 1j}), "cannot stand in a recipe"),
        (lambda: asyncrl.launch("quickstart", tags="mine"), r"tags is the text 'mine'; give a list of words, \['mine'\]"),
        (
            lambda: asyncrl.launch("quickstart", callbacks=print),
            "callbacks is <built-in function print>; give a list of functions",
        ),
        (lambda: asyncrl.launch({"defaults": ["quickstart", "_self_"], "stepps": 3}), "stepps: unknown key"),
        (lambda: asyncrl.evaluate("tiny", "quickstart", "steps=3"), "overrides is the text"),
        (lambda: asyncrl.evaluate(3, "quickstart"), "what is to be evaluated cannot be read"),
        (lambda: asyncrl.evaluate("tiny", "quickstart", samples=0), "cannot be read: Expected `int` >= 1"),
        (lambda: asyncrl.evaluate("tiny", "quickstart", versions=["a"]), "cannot be read: Expected `int`"),
        (lambda: asyncrl.evaluate("tiny", 3), "3 is no recipe"),
    ],
)
def test_what_cannot_be_read_is_refused_by_one_class(call, problem: str):
    with pytest.raises(asyncrl.RecipeError, match=problem):
        call()


def test_an_environment_that_is_importable_here_is_importable_there(tmp_path, monkeypatch):
    """And what is shown in a cell is not coloured for it: the kernel's FORCE_COLOR ends here."""
    (tmp_path / "beside_the_notebook.py").write_text("import os\nraise RuntimeError(f'colours: {os.getenv(\"FORCE_COLOR\")}')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with pytest.raises(asyncrl.RecipeError, match="colours: None"):
        asyncrl.evaluate("tiny", "quickstart", ["environment.name=beside_the_notebook:Environment"])


def test_a_notebook_shows_its_cells_lines_and_all_that_an_error_says(tmp_path):
    cell, file = "import asyncrl\n\nasyncrl.launch('quickstart', 'steps=3')\n", str(tmp_path / "ipykernel_1" / "2.py")
    linecache.cache[file] = (len(cell), None, cell.splitlines(keepends=True), file)
    with pytest.raises(asyncrl.RecipeError) as refused:
        exec(compile(cell, file, "exec"), {})
    refused.value.add_note("steps: 0 does not fit")
    shown = refused.value._render_traceback_()
    assert [line for line in shown if "test_python" not in line and "exec(" not in line] == [
        "Traceback (most recent call last):",
        "  Cell, line 3",
        "    asyncrl.launch('quickstart', 'steps=3')",
        f"RecipeError: {refused.value}",
        "steps: 0 does not fit",
    ]


async def test_an_interrupt_that_does_not_wake_the_event_loop_is_heeded():
    """Such is that of a Jupyter kernel: its handler schedules that the cell is cancelled."""
    loop, released = asyncio.get_running_loop(), threading.Event()
    waiting = asyncio.ensure_future(launching._in_thread(released.wait))
    before = signal.signal(signal.SIGUSR2, lambda number, frame: loop.call_soon(waiting.cancel))
    try:
        threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGUSR2)).start()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    finally:
        released.set()
        signal.signal(signal.SIGUSR2, before)
    assert await launching._in_thread(lambda: 3) == 3


INTERRUPTED = """
import asyncrl, sys

try:
    asyncrl.launch("quickstart", ["environment.name=slow_environment:Slow"])
except KeyboardInterrupt:
    print("interrupted")
"""


@contextlib.contextmanager
def program_that_launches(folder: Path) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """A program that launches a run which does not get beyond importing its environment, and the process that drives the run."""
    (folder / "slow_environment.py").write_text("import os, time\nprint('importing', os.getpid(), flush=True)\ntime.sleep(3600)")
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        word, _, number = process.stdout.readline().partition(" ")
        assert word == "importing"
        try:
            yield process, psutil.Process(int(number))
        finally:
            process.kill()


def test_an_interrupt_reaches_the_driver_and_is_raised_when_it_has_completed(tmp_path):
    with program_that_launches(tmp_path) as (program, driver):
        program.send_signal(signal.SIGINT)
        shown, _ = program.communicate(timeout=60)
        assert (program.returncode, shown) == (0, "interrupted\n")
        assert not driver.is_running()


def test_the_driver_does_not_outlive_the_program(tmp_path):
    with program_that_launches(tmp_path) as (program, driver):
        program.kill()
        assert psutil.wait_procs([driver], timeout=60) == ([driver], [])


@pytest.mark.parametrize(("status", "error"), [(Status.FAILED, asyncrl.RunFailed), (Status.INTERRUPTED, asyncrl.RunInterrupted)])
def test_a_run_that_did_not_complete_is_raised_with_reason_and_folder(folder, status, error):
    Summary(status=status, reason="no more coffee").write(folder.summary)
    with pytest.raises(error, match=f"no more coffee; see {folder.path}") as raised:
        completed(Ended(folder.path, ExitCode[status.name]), asyncrl.Run)
    assert (raised.value.reason, raised.value.folder) == ("no more coffee", folder.path)
    assert isinstance(raised.value, asyncrl.AsyncRLError)


def test_a_run_whose_driver_was_killed_has_failed(folder):
    with pytest.raises(asyncrl.RunFailed, match="the driver was killed by signal 9 and left no summary"):
        completed(Ended(folder.path, -9), asyncrl.Run)


def driver_of(code: str, monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """Have drivers run ``code``, in which ``answers`` is their descriptor, and return those that were started."""
    started = []

    def start(request: LaunchRequest) -> Driver:
        reading, writing = os.pipe()
        command = [sys.executable, "-c", f"answers = {writing}\n{code}"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=(writing,)))
        os.close(writing)
        return Driver(started[-1], open(reading, "rb"))

    monkeypatch.setattr(driver_process, "start_driver", start)
    return started


@pytest.mark.parametrize(
    ("end", "told"), [("os._exit(2)", "ended with code 2"), ("os.kill(os.getpid(), 9)", "was killed by signal 9")]
)
def test_an_old_summary_does_not_tell_how_a_resumed_run_ended(folder, monkeypatch, end, told):
    Summary(status=Status.COMPLETED).write(folder.summary)
    began = msgspec.json.encode(Began(str(folder.path))) + b"\n"
    driver_of(f"import os; os.write(answers, {began!r}); {end}", monkeypatch)
    with pytest.raises(asyncrl.RunFailed, match=f"the driver {told}, but the summary says completed"):
        asyncrl.Run(folder.path).resume()


def test_callbacks_of_a_resume_hear_of_nothing_that_was_before_it_wherever_it_goes_on(folder, tmp_path, monkeypatch):
    shutil.copytree(folder.path, elsewhere := tmp_path / "elsewhere")  # as of a run that is resumed by its address
    log = EventLog(RunFolder(elsewhere).events)
    log.tell(NoteSaid(text="before", level=20))
    began = Began(str(elsewhere), RunFolder(elsewhere).events.stat().st_size)
    now = msgspec.json.encode(NoteSaid(text="now", level=20)) + b"\n"
    code = f"""
import os
open({str(RunFolder(elsewhere).events)!r}, "ab").write({now!r})
os.write(answers, {msgspec.json.encode(began)!r} + bytes([10]))
os._exit(2)
"""
    driver_of(code, monkeypatch)
    heard: list[str] = []

    def slow(event, run):
        heard.append(event.text)
        run._driver.wait(60)
        run.finish("solved")  # it has ended meanwhile

    with pytest.raises(asyncrl.RunFailed):
        asyncrl.Run(folder.path).resume(callbacks=[slow])
    assert heard == ["now"]


async def test_a_run_is_followed_before_its_process_drives_it(folder, tmp_path, monkeypatch):
    began = msgspec.json.encode(Began(str(folder.path))) + b"\n"
    now = msgspec.json.encode(NoteSaid(text="now", level=20)) + b"\n"
    code = f"""
import os, pathlib, time
os.write(answers, {began!r})
while not pathlib.Path({str(tmp_path / "followed")!r}).exists():
    time.sleep(0.05)
open({str(folder.events)!r}, "ab").write({now!r})
"""
    driver_of(code, monkeypatch)
    monkeypatch.setattr(launching, "start_driver", driver_process.start_driver)

    async def follow() -> None:
        async with asyncrl.running("quickstart") as run:
            first = asyncio.create_task(anext(run.events()))
            await asyncio.sleep(0)
            (tmp_path / "followed").touch()
            assert (await first).text == "now"

    with pytest.raises(asyncrl.RunFailed, match="left no summary"):
        await follow()


def test_an_interrupt_while_the_driver_starts_ends_it_too(monkeypatch):
    started = driver_of("import time; time.sleep(3600)", monkeypatch)
    start = driver_process.start_driver

    def interrupted(request: LaunchRequest) -> Driver:
        driver = start(request)
        signal.raise_signal(signal.SIGINT)
        return driver

    monkeypatch.setattr(driver_process, "start_driver", interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        asyncrl.launch("quickstart")
    assert started[0].returncode is not None
    assert signal.getsignal(signal.SIGINT) is before


def test_a_process_that_keeps_the_output_open_is_not_waited_for(folder, monkeypatch):
    monkeypatch.setattr(driver_process, "SHOWING_S", 0.1)
    began = msgspec.json.encode(Began(str(folder.path))) + b"\n"
    code = f"""
import os, subprocess
left = subprocess.Popen(["sleep", "3600"])
os.write(answers, {began!r})
open({str(folder.path / "left")!r}, "w").write(str(left.pid))
"""
    driver_of(code, monkeypatch)
    try:
        assert driver_process.drive(LaunchRequest("quickstart")) == Ended(folder.path, 0)
    finally:
        os.kill(int((folder.path / "left").read_text()), signal.SIGKILL)


def test_what_a_driver_prints_before_it_ends_is_shown_before_the_error(monkeypatch, capsys):
    code = """
import os
ending, held = os.pipe()
if os.fork() == 0:
    os.close(held), os.close(answers)
    os.read(ending, 1)  # until the driver has ended
    print("\\n".join(map(str, range(100_000))), flush=True)
"""
    driver_of(code, monkeypatch)
    with pytest.raises(ComponentFailed, match="what it printed above says why"):
        driver_process.drive(LaunchRequest("quickstart"))
    assert capsys.readouterr().out.endswith("\n99999\n")


def test_metrics_whose_database_is_gone_are_told_and_no_database_is_made(folder):
    folder.tracked_as.write_text("0123456789abcdef")
    with pytest.raises(asyncrl.NotThere, match="which is gone"):
        asyncrl.Run(folder.path).metrics()
    assert not folder.database.exists()


def test_the_recipe_is_the_one_that_the_run_has_now(folder):
    run = asyncrl.Run(folder.path)
    before = run.recipe
    assert run.recipe is before
    folder.keep_recipe(msgspec.structs.replace(before, steps=123))
    assert run.recipe.steps == 123


def test_what_a_run_does_not_have_is_told(folder, tmp_path):
    run = asyncrl.Run(folder.path)
    with pytest.raises(asyncrl.NotThere, match="has no summary"):
        run.summary  # noqa: B018
    with pytest.raises(asyncrl.NotThere, match="has no trained model: the run has not completed"):
        run.model_path  # noqa: B018
    with pytest.raises(asyncrl.NotThere, match="has no metrics yet"):
        run.metrics()
    with pytest.raises(asyncrl.NotThere, match="no episodes are kept in"):
        run.trajectories()
    with pytest.raises(asyncrl.RecipeError, match="is the folder of several runs"):
        asyncrl.Run(tmp_path)
    with pytest.raises(asyncrl.NotThere, match="has no scores"):
        asyncrl.Evaluation(tmp_path).summary  # noqa: B018


def test_a_run_in_a_folder_whose_name_is_not_utf8_is_refused_with_the_name(tmp_path):
    with pytest.raises(RecipeError, match=r"caf\\udce9' is not UTF-8; rename the file or folder"):
        start_driver(LaunchRequest(None, (), resume=f"{tmp_path}/caf\udce9"))

import argparse
import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from rich.console import Console

from asyncrl.cli.arguments import whole_number
from asyncrl.cli.main import command_line, main
from asyncrl.cli.outcome import ExitCode, run_to_end
from asyncrl.core.errors import ComponentFailed
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.signals import interrupting
from asyncrl.run.host.system_limits import allow_open_files
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.recipe.compose import compose

HEAVY = {"torch", "ray", "vllm", "transformers", "megatron", "mlflow"}


def test_a_mistyped_key_is_refused_fast():
    command = [sys.executable, "-m", "asyncrl.cli.main", "launch", "quickstart", "learner.lrr=1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        told = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    # Processor seconds of this process, so that a busy machine does not matter, and nor does who else ends meanwhile.
    assert used.ru_utime + used.ru_stime < 3
    assert process.returncode == 2
    assert "did you mean `learner.lr`?" in told
    assert "Traceback" not in told


def test_help_of_the_whole_command_imports_none_of_its_commands_and_shows_all():
    script = """
import sys
from asyncrl.cli.main import main
try:
    main(["--help"])
except SystemExit:
    print(sorted({"rich", "msgspec", "asyncrl.cli.launch", "asyncrl.core.errors"} & set(sys.modules)))
"""
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True).stdout
    assert shown == command_line().format_help() + "[]\n"
    for given in ("runs", "stop"):
        (commands,) = (each for each in command_line(given)._actions if isinstance(each, argparse._SubParsersAction))
        known = [name for name, parser in commands.choices.items() if parser.get_default("run") is not None]
        assert given in known
        assert len(known) == 2, "those of one module"


@pytest.mark.parametrize(
    "statement",
    [
        "import asyncrl",
        "from asyncrl.cli.main import main; main(['launch', 'quickstart', 'learner.lrr=1'])",
        "from asyncrl.cli.main import main; main(['launch', 'quickstart', '--dry-run'])",
    ],
)
def test_nothing_heavy_is_imported_before_a_recipe_is_accepted(statement):
    script = f"{statement}\nimport sys\nprint(sorted({HEAVY!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_a_dry_run_shows_recipe_and_plan_and_starts_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["launch", "quickstart", "generators.count=3", "--dry-run", "learner.lr=1e-4"]) == ExitCode.COMPLETED
    shown, said = capsys.readouterr()
    assert said.endswith("The recipe can be launched; nothing was started.\n")
    assert "lr: 0.0001" in shown
    assert "count: 3" in shown
    assert "a vLLM engine" in shown
    assert list(tmp_path.iterdir()) == []


def test_everything_wrong_with_a_recipe_is_told(capsys):
    assert main(["launch", "quickstart", "learner.lrr=1", "steps=0"]) == ExitCode.REFUSED
    told = capsys.readouterr().err
    assert "learner.lrr" in told
    assert "steps: 0 does not fit; must be an integer >= 1" in told


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["lunch"],
        ["launch"],
        ["launch", "quickstart", "--dryrun"],
        ["bench", "loop"],
        ["bench", "loop", "--json", "no/where/x"],
    ],
)
def test_wrong_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--help"], ["launch", "--help"], ["bench", "loop", "--help"], ["buffer", "--help"], ["evaluate", "--help"]]
)
def test_help(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert "usage: asyncrl" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "limit", "told"),
    [
        (
            ["launch", "quickstart", "--dry-run"],
            "exec >/dev/full",
            "Failed: standard output: No space left on device; not everything",
        ),
        (
            ["--help"],
            "unset PYTHONUNBUFFERED; exec >/dev/full",
            "Failed: standard output: No space left on device; not everything could be shown",
        ),
        (
            ["bench", "pool", "--engines", "1", "--hours", "1", "--json", "/dev/null"],
            "exec >/dev/full",
            "standard output: No space",
        ),
        (["launch", "quickstart", "--dry-run"], "ulimit -v 200000", "195 MiB of address space are allowed"),
        (["launch", "quickstart", "--dry-run"], "exec >&-", ""),
        (["launch", "quickstart", "--dry-run"], "unset HOME; export TERM=dumb LC_ALL=C", ""),
    ],
)
def test_what_the_system_refuses_is_told_without_a_traceback(arguments, limit, told):
    command = f'{limit}; exec "$@"'
    result = subprocess.run(
        ["bash", "-c", command, "bash", sys.executable, "-m", "asyncrl.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == (1 if told else 0), result.stderr
    assert told in result.stderr
    assert "Traceback" not in result.stderr


def test_a_benchmark_whose_reader_goes_away_is_done_to_its_end(tmp_path):
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "asyncrl.cli.main", "bench", "pool", "--engines", "1", "--hours", "1", "--json", str(result)]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=120)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
    assert result.stat().st_size


RESTLESS = """
import os
from asyncrl.envs.builtin.calculator import Calculator

class Restless(Calculator):
    @classmethod
    def make_tasks(cls, *arguments, **options):
        os.chdir("/")
        return super().make_tasks(*arguments, **options)

class Curriculum:
    def __init__(self, sources):
        os.chdir("/")

    def weights(self):
        return [1.0, 1.0]

    def observe(self, source, rewards):
        pass

    def state(self):
        return {}

    def restore(self, state):
        pass

os.chdir("/")
"""


OF_FILES = """
  kind: files
  train: [{path: a.jsonl}, {path: c.jsonl}]
  evaluation: [{path: b.jsonl}]
  curriculum: {name: "restless:Curriculum"}"""


@pytest.mark.parametrize(("environment", "tasks"), [("restless:Restless", "{}"), ("calculator", OF_FILES)])
def test_user_code_that_leaves_the_folder_moves_no_path_of_the_recipe(tmp_path, monkeypatch, environment, tasks):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "restless.py").write_text(RESTLESS)
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"prompt": "{name}", "answer": 1.0}}\n')
    head = "name: mine\nsteps: 1\nmodel: {path: tiny}"
    (tmp_path / "mine.yaml").write_text(f"{head}\nenvironment: {{name: '{environment}'}}\ntasks: {tasks}\n")
    monkeypatch.delitem(sys.modules, "restless", raising=False)
    folders = []
    monkeypatch.setattr("asyncrl.cli.launch.run_to_end", lambda run, recipe, folder, *_, **__: folders.append(folder.path) or 0)
    assert main(["launch", "mine.yaml"]) == ExitCode.COMPLETED
    assert [folder.parent for folder in folders] == [tmp_path / "runs"]


class TestRunToEnd:
    @pytest.fixture
    def end(self, tmp_path, capsys):
        recipe = compose("quickstart", [f"run_dir={tmp_path}"])
        folder = RunFolder.create(recipe)

        def end(run: Callable[..., Summary], before: Summary | None = None) -> tuple[ExitCode, str, RunFolder]:
            code = run_to_end(run, recipe, folder, Console(), before=before)
            return code, capsys.readouterr().out, folder

        return end

    @pytest.mark.parametrize(("status", "code"), [("completed", 0), ("failed", 1), ("interrupted", 130)])
    def test_the_exit_code_is_the_status(self, end, status, code):
        assert end(lambda *_: Summary(status=Status(status), reason="why"))[0] == code

    def test_an_error_of_our_own_is_shown_by_its_message(self, end):
        def run(*_: object) -> Summary:
            raise ComponentFailed("generator-1 died")

        code, shown, folder = end(run)
        assert code == ExitCode.FAILED
        assert shown.splitlines()[0] == "Failed: generator-1 died"
        assert shown.splitlines()[-1] == f"Logs: {folder.logs}"
        assert Summary.read(folder.summary).reason == "generator-1 died"

    def test_an_unexpected_error_leaves_its_traceback_in_the_log(self, end):
        def run(*_: object) -> Summary:
            raise KeyError("surprise")

        code, shown, folder = end(run)
        assert code == ExitCode.FAILED
        assert "unexpected KeyError: 'surprise'; see driver.log" in shown
        assert "Traceback" not in shown
        log = (folder.logs / "driver.log").read_text()
        assert "Traceback" in log
        assert "KeyError: 'surprise'" in log

    @pytest.mark.parametrize("error", [KeyError("surprise"), KeyboardInterrupt()], ids=["error", "interrupt"])
    def test_a_resume_that_dies_while_starting_forgets_nothing_and_counts(self, end, error):
        def run(*_: object) -> Summary:
            raise error

        before = Summary(status=Status.INTERRUPTED, reason="stopped by the user", steps=14, wall_s=80.0, resumes=0)
        for resumes in (1, 2):
            _, _, folder = end(run, before)
            told = Summary.read(folder.summary)
            assert (told.steps, told.wall_s, told.resumes, folder.resumes) == (14, 80.0, resumes, resumes)
            assert told.status is not Status.COMPLETED
            before = told

    def test_a_log_that_cannot_be_written_is_refused(self, end, capsys):
        def run(*_: object) -> Summary:
            raise AssertionError("it was started")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunFolder, "driven", lambda folder: contextlib.nullcontext((folder.logs / "driver.log").mkdir()))
            code, _, folder = end(run)
        assert code == ExitCode.REFUSED
        assert not folder.summary.exists()

    def test_an_interrupt_that_escapes_is_no_failure(self, end):
        def run(*_: object) -> Summary:
            raise KeyboardInterrupt

        code, shown, folder = end(run)
        assert code == ExitCode.INTERRUPTED
        assert Summary.read(folder.summary).status is Status.INTERRUPTED
        assert shown.splitlines()[0] == "Interrupted: stopped by SIGINT"

    def test_sigterm_where_nothing_hears_it_is_an_interrupt_by_its_name(self, end):
        def run(*_: object) -> Summary:
            with interrupting():
                signal.raise_signal(signal.SIGTERM)
            raise AssertionError("it was not heard")

        code, shown, folder = end(run)
        assert code == ExitCode.INTERRUPTED
        assert Summary.read(folder.summary).reason == "stopped by SIGTERM"
        assert shown.splitlines()[0] == "Interrupted: stopped by SIGTERM"

    def test_a_reader_who_goes_away_does_not_end_it(self, tmp_path):
        recipe = compose("quickstart", [f"run_dir={tmp_path}"])
        folder = RunFolder.create(recipe)
        program = f"""if True:
            import sys
            from pathlib import Path
            from asyncrl.cli.console import PatientConsole
            from asyncrl.cli.outcome import run_to_end
            from asyncrl.run.recipe.compose import compose
            from asyncrl.run.folder.run_folder import RunFolder
            from asyncrl.run.measures.summary import Status, Summary

            def run(recipe, folder, view):
                sys.stdin.read()  # until the reader has gone
                view.note("nobody reads this")
                view.note("nor this")
                return Summary(status=Status.COMPLETED, reason="", steps=7)

            recipe = compose("quickstart", [])
            folder = RunFolder.find(Path({str(folder.path)!r}))
            sys.exit(run_to_end(run, recipe, folder, PatientConsole()))
        """
        pipe = subprocess.PIPE
        process = subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe)
        process.stdout.close()
        _, said = process.communicate(timeout=240)
        assert process.returncode == ExitCode.COMPLETED, said
        assert b"Traceback" not in said


def test_what_the_terminal_cannot_show_is_replaced():
    result = subprocess.run(
        [sys.executable, "-m", "asyncrl.cli.main", "launch", "quickstart", "tracking.experiment='caf\u00e9'", "--dry-run"],
        capture_output=True,
        timeout=240,
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "1"},
    )
    assert b"Traceback" not in result.stderr
    assert result.returncode == 0
    assert b"caf?" in result.stdout


BEYOND_ALL = "1" + 22 * "0"


@pytest.mark.parametrize(
    "arguments",
    [
        ["scale", "RUN", f"generators={BEYOND_ALL}"],
        ["scale", "RUN", f"generators=1{5000 * '0'}"],
        ["scale", "RUN", "generators=-1"],
        ["show", "RUN", "--step", BEYOND_ALL],
        ["show", "RUN", "--step", "-1"],
        ["show", "RUN", "--limit", BEYOND_ALL],
        ["export", "RUN", "--to", "x", "--version", BEYOND_ALL],
        ["evaluate", "RUN", "--version", f"0,{BEYOND_ALL}"],
        ["evaluate", "RUN", "--samples", BEYOND_ALL],
        ["env", "eval", "calculator", "--model", "tiny", "-n", BEYOND_ALL],
        ["env", "eval", "calculator", "--model", "tiny", "--version", BEYOND_ALL],
        ["env", "serve", "calculator", "--port", BEYOND_ALL],
        ["bench", "pool", "--engines", BEYOND_ALL, "--json", "x.json"],
    ],
)
def test_a_number_beyond_all_sense_is_refused_as_wrong_usage(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    told = capsys.readouterr().err
    assert caught.value.code == 2
    assert "must be a whole number from" in told
    assert len(told) < 3000


def test_a_whole_number_may_begin_with_zeros():
    assert whole_number("007") == 7
    assert whole_number("000") == 0


def test_few_open_files_are_refused_before_anything_starts(tmp_path):
    command = ["bash", "-c", 'ulimit -n 64; exec "$@"', "bash", sys.executable, "-m", "asyncrl.cli.main"]
    done = subprocess.run([*command, "launch", "quickstart", f"run_dir={tmp_path}"], capture_output=True, text=True, timeout=120)
    assert done.returncode == ExitCode.REFUSED
    assert "a process may have 64 files and connections open here, and those of a run need 256 at least; raise" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_launch_allows_itself_the_open_files_that_it_may_have(monkeypatch):
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    allow_open_files()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    allow_open_files()
    assert asked == [(4096, 4096)]


@pytest.mark.parametrize(
    ("file", "command"),
    [("logs/driver.log", "logs"), ("buffer/journal.head", "buffer"), ("buffer/journal/00000001.log", "buffer")],
)
def test_a_disk_that_fails_is_told_with_the_file(tmp_path, capsys, file, command):
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]))
    failing = folder.path / file
    failing.parent.mkdir(parents=True, exist_ok=True)
    failing.symlink_to("/proc/self/mem")  # it opens, and reading it fails as a broken disk does
    assert main([command, str(folder.path)]) == ExitCode.FAILED
    assert f"Failed: {failing}: Input/output error; the disk" in capsys.readouterr().err

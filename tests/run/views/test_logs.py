"""`asyncrl logs` merges all logs of a run by time; a log that a tool fills stays bounded."""

import logging
import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.cli.main import main
from asyncrl.cli.outcome import ExitCode
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.process_output import BoundedLog
from asyncrl.run.recipe.compose import compose
from asyncrl.run.views.logs import LogFile, follow_logs, read_logs
from asyncrl.weights.vllm.rounding_log import explain_rounding

GENERATOR = """\
printed before any time
2026-11-22 06:37:14,802 INFO generators.engine: starting
(EngineCore pid=32290) WARNING 11-22 06:37:16 [utils.py:333] something of vLLM's
2026-11-22 06:37:17,000 WARNING vllm.triton_utils: Triton is not there
(EngineCore pid=32290) ERROR 11-22 06:37:18 [core.py:33] an error of vLLM's
a tool prints this
2026-11-22 06:37:20,000 WARNING asyncrl.core.plug_ins.error_counts: task t: reward() of my_env.py:41 raised KeyError: 'answer'
Traceback (most recent call last):
  File "/home/me/my_env.py", line 41, in reward
    return task.data["answer"]
KeyError: 'answer'
a tool prints that
"""
DRIVER = """\
2026-11-22 06:37:15,000 INFO asyncrl.run.views.live_view: Starting Ray
2026-11-22 06:37:20,900 INFO asyncrl.run.views.live_view: task t: reward() of my_env.py:41 raised KeyError: 'noted'
Traceback (most recent call last):
  File "/home/me/my_env.py", line 41, in reward
KeyError: 'noted'
2026-11-22 06:37:21,500 ERROR asyncrl.run.launch: the run failed
Traceback (most recent call last):
  File "x.py", line 1, in f
ValueError: one

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "x.py", line 2, in g
ValueError: two
2026-11-22 06:37:22,000 INFO asyncrl.run.launch: closing
"""
LEARNER = """\
[W1122 06:37:15.500000000 utils.cpp:68] Warning: NUMA
Loading:   0%\rLoading: 100%
Traceback (most recent call last):
  File "y.py", line 3, in h
RuntimeError: printed
afterwards
"""


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]))
    for name, text in (("generator-0", GENERATOR), ("driver", DRIVER), ("learner-0", LEARNER)):
        (folder.logs / f"{name}.log").write_text(text)
    return folder


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["logs", *arguments]) == ExitCode.COMPLETED
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_all_lines_are_merged_by_time_with_their_process(run: RunFolder, capsys: pytest.CaptureFixture[str]):
    lines = shown([str(run.path)], capsys)
    assert len(lines) == (GENERATOR + DRIVER + LEARNER).count("\n")
    assert [line.split()[0] for line in lines[:6]] == [
        "generator-0",
        "generator-0",
        "driver",
        "learner-0",
        "learner-0",
        "learner-0",
    ]
    assert lines[0] == "generator-0  printed before any time"
    assert lines[4] == "learner-0    Loading: 100%"
    assert [line.split(None, 1)[1] for line in lines if line.startswith("generator-0")] == [
        line.strip() for line in GENERATOR.splitlines()
    ]


def test_errors_come_with_their_tracebacks_and_without_what_tools_print(run: RunFolder, capsys: pytest.CaptureFixture[str]):
    text = "\n".join(shown([str(run.path), "--errors"], capsys))
    for told in (
        "KeyError: 'answer'",
        "raised KeyError: 'noted'",
        "ValueError: one",
        "ValueError: two",
        "RuntimeError: printed",
        "an error of vLLM's",
    ):
        assert told in text
    for untold in ("something of vLLM's", "Triton", "NUMA", "a tool prints", "Starting Ray", "closing", "afterwards", "starting"):
        assert untold not in text


def test_several_runs_are_shown_one_after_the_other(run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    other = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path / 'other'}"]))
    (other.logs / "driver.log").write_text("2026-11-22 06:00:00,000 WARNING x: of the other\n")
    lines = shown([str(run.path), str(other.path), "--errors"], capsys)
    assert (lines[0], lines[-2].endswith(other.path.name), lines[-1].endswith("of the other")) == (str(run.path), True, True)
    assert main(["logs", str(run.path), str(other.path), "-f"]) == ExitCode.REFUSED
    assert "2 runs are named, and one can be followed" in capsys.readouterr().err


def test_what_would_disturb_a_terminal_is_taken_out(run: RunFolder, capsys: pytest.CaptureFixture[str]):
    (run.logs / "generator-0.log").write_bytes(b"\x1b[31mred\x1b[0m \x1b]0;title\x07 \xff\n")
    lines = [line for line in shown([str(run.path)], capsys) if line.startswith("generator-0")]
    assert lines == ["generator-0  red \ufffd]0;title\ufffd \ufffd"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.booleans()), max_size=30))
def test_the_merge_is_stable_and_loses_nothing(tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, int, bool]]):
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.logs.mkdir()
    (folder.logs / "always.log").write_text("")
    for number, (process, second, stamped) in enumerate(lines):
        with (folder.logs / f"{process}.log").open("a") as file:
            file.write(f"2026-11-22 06:00:0{second},000 INFO x: {number}\n" if stamped else f"print {number}\n")
    records = list(read_logs(folder))
    assert sorted(int(record.lines[0].split()[-1]) for record in records) == list(range(len(lines)))
    assert [record.time for record in records] == sorted(record.time for record in records)
    for process in "abc":
        numbers = [int(record.lines[0].split()[-1]) for record in records if record.process == process]
        assert numbers == sorted(numbers)


def test_following_shows_what_is_added_and_ends_with_the_run(run: RunFolder):
    log = run.logs / "generator-0.log"
    rounds = 0

    def wait(seconds: float) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            log.open("a").write("2026-11-22 06:37:30,000 INFO x: half a li")
        elif rounds == 2:
            log.open("a").write("ne\n")
            (run.logs / "generator-1.log").write_text("2026-11-22 06:37:31,000 INFO x: it takes its place\n")
        elif rounds == 6:
            driving.close()

    driving = run_driven(run)
    lines = [line for record in follow_logs(run, wait) for line in record.lines]
    assert rounds == 6
    assert lines.count("2026-11-22 06:37:30,000 INFO x: half a line") == 1
    assert lines[-1] == "2026-11-22 06:37:31,000 INFO x: it takes its place"
    assert len(lines) == (GENERATOR + DRIVER + LEARNER).count("\n") + 2


def run_driven(run: RunFolder):
    """Another process that drives the run until it is closed."""
    program = (
        "import sys, pathlib; from asyncrl.run.folder.run_folder import RunFolder\n"
        "with RunFolder(pathlib.Path(sys.argv[1])).driven():\n"
        "    print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(run.path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdout.readline()

    class Driving:
        def close(self) -> None:
            process.communicate()

    return Driving()


def test_a_run_without_logs_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]))
    assert main(["logs", str(folder.path)]) == ExitCode.REFUSED
    assert "has no logs" in capsys.readouterr().err


def test_a_log_keeps_its_beginning_and_its_newest_lines(tmp_path: Path):
    path = tmp_path / "generator-0.log"
    rng = random.Random(0)
    with path.open("ab", buffering=0) as file:
        bounded = BoundedLog(path, limit=10_000, head=1_000, tail=1_000)
        for number in range(5_000):
            file.write(b"line %d %s\n" % (number, b"x" * rng.randrange(50)))
            bounded.look()
            assert path.stat().st_size <= 10_000
    lines = path.read_text().splitlines()
    numbers = [int(line.split()[1]) for line in lines if line.startswith("line")]
    (note,) = [line for line in lines if not line.startswith("line")]
    assert note.endswith("bytes of this log were cut out here: it had more than 10,000]")
    first = lines.index(note)
    assert numbers[:first] == list(range(first))
    assert numbers[first:] == list(range(numbers[first], 5_000))
    written = sum(len(b"line %d %s\n" % (number, b"x" * draw)) for number, draw in enumerate(draws()))
    kept = sum(len(line) + 1 for line in lines if line != note)
    assert int(note.split()[0].strip("[").replace(",", "")) == written - kept


def draws() -> list[int]:
    rng = random.Random(0)
    return [rng.randrange(50) for _ in range(5_000)]


def test_a_reader_goes_on_after_a_cut(tmp_path: Path):
    path = tmp_path / "generator-0.log"
    path.write_text("2026-11-22 06:00:00,000 INFO x: first\n" * 1_000)
    log = LogFile(path)
    assert len(list(log.read(whole=True, ended=False))) == 1_000
    BoundedLog(path, limit=10_000, head=1_000, tail=1_000).look()
    assert list(log.read(whole=True, ended=False)) == []
    path.open("a").write("2026-11-22 06:00:01,000 INFO x: after it\n")
    (record,) = log.read(whole=True, ended=False)
    assert record.lines == ["2026-11-22 06:00:01,000 INFO x: after it"]
    log.close()


def test_rounding_to_the_engines_precision_is_told_once(caplog: pytest.LogCaptureFixture):
    """The text is vLLM's own: if it changes there, the warnings come back."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    source = (Path(spec.origin).parent / "model_executor" / "models" / "utils.py").read_text()
    assert '"Attempted to load weight %s with dtype %s into "\n' in source
    assert '"parameter with dtype %s",\n' in source
    explain_rounding()
    explain_rounding()
    logger, text = (
        logging.getLogger("vllm.model_executor.models.utils"),
        "Attempted to load weight %s with dtype %s into parameter with dtype %s",
    )
    with caplog.at_level(logging.INFO, logger.name):
        for name in "abc":
            logger.warning(text, name, "torch.float32", "torch.bfloat16")
        logger.warning(text, "d", "torch.bfloat16", "torch.float16")
        logger.warning("something else")
    told = [record for record in caplog.records if record.name == logger.name]
    assert [(record.levelname, record.getMessage().split()[0]) for record in told] == [
        ("WARNING", "weights"),
        ("WARNING", "Attempted"),
        ("WARNING", "something"),
    ]


def test_logs_without_an_error_say_so(run: RunFolder, capsys: pytest.CaptureFixture[str]):
    for log in run.logs.glob("*.log"):
        log.write_text("2026-11-22 06:37:14,802 INFO generators.engine: starting\n")
    assert main(["logs", str(run.path), "--errors"]) == ExitCode.COMPLETED
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"The logs of {run.path} hold no errors or warnings of the run's own processes.\n")

"""The benchmark of a GPU on a CPU: its arithmetic, its processes, and one part from beginning to end."""

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import torch
from gloo_collective import Gloo

from asyncrl.bench.gpu import ahead, broadcast, correctness, engine, publication, room, run, settings, subject, training
from asyncrl.bench.gpu.ahead import Machine, machine, sayable
from asyncrl.bench.gpu.correctness import RankOutcome
from asyncrl.bench.gpu.isolated import MeasurementFailed, isolated
from asyncrl.bench.gpu.run import GpuBenchResult
from asyncrl.bench.gpu.settings import EngineSettings, GpuBenchSettings
from asyncrl.bench.gpu.training import Case, Speed

CPU = torch.device("cpu")


def test_sizes_are_those_of_the_models_they_are_named_after():
    assert settings.QWEN3_06B.parameters == 596_049_920
    assert settings.QWEN3_17B.parameters == 1_720_574_976
    assert settings.QWEN3_4B.parameters == 4_022_468_096


def test_a_measurement_has_a_process_of_its_own():
    assert isolated(os.getpid, seconds=240) != os.getpid()
    assert isolated(os.getenv, "CUDA_VISIBLE_DEVICES", seconds=240, gpus=False) == ""


def test_a_measurement_that_fails_dies_or_hangs_says_so():
    with pytest.raises(MeasurementFailed, match="ZeroDivisionError"):
        isolated(divmod, 1, 0, seconds=240)
    with pytest.raises(MeasurementFailed, match="died with exit code 3"):
        isolated(os._exit, 3, seconds=240)
    with pytest.raises(MeasurementFailed, match="had not finished after 0 s"):
        isolated(time.sleep, 1000, seconds=0.1)


FORKED = """
import os
from concurrent.futures import ThreadPoolExecutor
from asyncrl.bench.gpu.isolated import isolated

PARENT, (other_lives, say_so), (told, tell) = os.getpid(), os.pipe(), os.pipe()

def live():
    os.write(say_so, b"!")
    os.read(told, 1)
    return isolated(os.getppid, seconds=60, forked=True) == os.getpid() != PARENT

def die():
    os.read(other_lives, 1)
    os._exit(3)

with ThreadPoolExecutor() as threads:
    first, second = (threads.submit(isolated, work, seconds=120, forked=True) for work in (live, die))
    assert "died with exit code 3" in str(second.exception())
    assert not first.done()
    os.write(tell, b"?")
    assert first.result()
"""


def test_a_fork_that_dies_is_noticed_while_another_lives():
    """In a process of its own, since one that has computed with torch is not to be forked."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


KILLED = """
import os, signal
from pathlib import Path
from asyncrl.bench.gpu import subject
with subject.all_folders():
    for folder in os.environ[subject.FOLDERS].split(os.pathsep):
        (Path(folder) / "model.safetensors").touch()
    print(os.environ[subject.FOLDERS], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_benchmark_has_left_in_memory_and_on_disk_goes_with_the_next_one():
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=240)
    left = [Path(folder) for folder in done.stdout.strip().split(os.pathsep)]
    assert [(folder / "model.safetensors").exists() for folder in left] == [True, True]
    with subject.all_folders():
        assert not any(folder.exists() for folder in left)


def test_targets_are_judged_by_what_was_measured():
    speed = Speed(1.0, 100.0, 1.0, 0.5, None)
    cases = [
        Case(model="1.7B", rows="equal", options={}, learner=speed, ratio=0.9),
        Case(model="1.7B", rows="lognormal", options={}, learner=speed, ratio=1.6),
        Case(model="1.7B", rows="equal", options={"recompute": "full"}, learner=msgspec.structs.replace(speed, mfu=0.1)),
        Case(model="4B", rows="equal", options={}, problem="there was no time left"),
    ]
    assert list(training._targets(cases).values()) == [False, True, True]


H100_BYTES = 81_559 << 20


@pytest.mark.parametrize(
    ("size", "there", "options", "rows"),
    [
        (settings.QWEN3_06B, H100_BYTES, {}, 2),
        (settings.QWEN3_17B, H100_BYTES, {}, 1),
        (settings.QWEN3_4B, H100_BYTES, {"recompute": "full"}, 0),
        (settings.QWEN3_4B, 143_771 << 20, {}, 1),
        (settings.QWEN3_17B, 24 << 30, None, 0),
        (settings.QWEN3_4B, None, {}, 2),
    ],
)
def test_what_does_not_fit_on_the_gpu_is_made_smaller_or_left_out(size, there, options, rows):
    measured = GpuBenchSettings().training
    assert room.recomputed(size, measured, there) == options
    assert room.plain_rows(size, measured, there) == rows


def test_both_loops_of_one_case_would_not_fit_into_one_process():
    size, measured = settings.QWEN3_17B, GpuBenchSettings().training
    both = room.learner_bytes(size, measured) + room.plain_bytes(size, measured.plain_rows * measured.row_tokens)
    assert both > 1.2 * H100_BYTES


def test_the_learner_s_figures_stay_where_the_plain_loop_fails():
    speed = Speed(1.0, 100.0, 1.0, 0.5, None)

    def time_one(loop, case, ends, *further):
        if loop is training.time_plain_loop:
            raise MeasurementFailed("out of memory")
        return training.Timed(speed, 1.0)

    case = training._measured(Case(model="1.7B", rows="equal", options={}), time_one, 1, 0.0)
    assert (case.learner, case.plain, case.ratio, case.problem) == (speed, None, None, "the plain loop: out of memory")
    assert training._targets([case]) == {"1.7B: MFU 0.47": True}
    assert "100 tokens/s" in run._case_name(case)
    assert "out of memory" in run._case_name(case)


@pytest.mark.usefixtures("forked")
def test_both_loops_train_on_the_same_rows():
    small = msgspec.structs.replace(GpuBenchSettings.small().training, variants_of="")
    with subject.all_folders():
        result = training.measure(small, 240)
    assert [case.rows for case in result.cases] == ["equal", "lognormal"]
    for case in result.cases:
        assert not case.problem
        assert case.gradient_gap is not None
        assert case.gradient_gap < (1e-4 if result.device == "cpu" else 2e-2)
        assert case.ratio == pytest.approx(case.learner.tokens_per_s / case.plain.tokens_per_s)


def test_an_engine_that_is_not_installed_is_missing_and_no_failure(monkeypatch):
    monkeypatch.setattr(engine, "NEEDED", ("vllm", "no_such_package"))
    result = engine.measure(EngineSettings(), 1.0)
    assert result.engine is result.run is None
    assert result.missing == ("no_such_package: not installed",)


@pytest.mark.usefixtures("forked")
def test_a_part_runs_to_its_end_and_is_written(tmp_path):
    lines: list[str] = []
    file = tmp_path / "gpu.json"
    result = run.run(file, lines.append, GpuBenchSettings.small(), ("logprob",))
    assert not result.failures
    assert msgspec.json.decode(file.read_bytes(), type=GpuBenchResult) == result
    assert result.logprob is not None
    assert result.logprob.largest_gap < 1e-4
    assert result.logprob.seconds > 0
    assert result.packages["torch"] is not None
    assert any(line.strip().startswith("missing: a GPU") for line in lines) or result.device != "cpu"
    assert result.engine is None
    assert sys.version.startswith(result.python)


@pytest.mark.usefixtures("forked")
def test_a_broadcast_between_two_processes_is_measured():
    with subject.all_folders():
        times = broadcast.measure_between(CPU, CPU, Gloo(), GpuBenchSettings.small().publication)
    assert times.fingerprints_equal
    assert times.bytes == sum(tensor.nbytes for tensor in publication.made_weights(settings.TINY).values())
    assert times.first_seconds > 0
    assert times.bytes_per_s > 0


def test_what_a_broadcast_lacks_is_told():
    missing = broadcast.measure(GpuBenchSettings.small().publication).missing
    assert torch.cuda.device_count() > 1 or any(what.startswith("a second GPU") for what in missing)


def rank(variant="plain", device="cuda", dtype="float32", norms=(1.0, 2.0), **outcome):
    right = {"losses": (0.5, 0.25), "fingerprint_equal": True, "resume_difference": 0.0}
    return RankOutcome(variant=variant, device=device, dtype=dtype, grad_norms=norms, **(right | outcome))


ON_CPU = [rank(device="cpu"), rank("experts", device="cpu", norms=(3.0, 3.0))]


@pytest.mark.parametrize(
    ("measured", "refused"),
    [
        (rank(norms=(1.00001, 2.0)), ""),
        (rank(norms=(1.001, 2.0)), "plain, cuda, float32: gradient norms differ by 1.0e-03 from the CPU's in float32"),
        (rank(dtype="bfloat16", norms=(1.001, 2.0)), ""),
        (rank(dtype="bfloat16", norms=(1.0, 2.1)), "plain, cuda, bfloat16: gradient norms differ by 5.0e-02"),
        (rank("experts"), "experts, cuda, float32: gradient norms differ by 6.7e-01"),
        (rank(norms=(float("nan"), 2.0)), "gradient norms differ by nan"),
        (rank(fingerprint_equal=False), "has another fingerprint than the weights"),
        (rank(resume_difference=0.01), "the resumed step's gradient norm differs by 1.0e-02"),
        (RankOutcome(variant="plain", device="cuda", dtype="float32", problem="out of memory"), "float32: out of memory"),
    ],
)
def test_each_way_to_train_is_compared_with_itself_on_the_cpu(measured, refused):
    result = correctness.compared([*ON_CPU, measured], ())
    assert len(result.refused) == bool(refused)
    assert refused in "".join(result.refused)


def test_what_one_size_of_model_gave_is_written_before_the_next_is_measured(monkeypatch, tmp_path):
    file, seen = tmp_path / "gpu.json", []

    def measured(work, *arguments, seconds, **_):
        if work is machine:
            return Machine("a GPU", 1, 80 * 2**30)
        seen.append(len(msgspec.json.decode(file.read_bytes())["training"]["cases"]) if seen else 0)
        (size,) = arguments[0].models
        if size.name == "1.7B":
            raise MeasurementFailed("not in time")
        case = Case(model=size.name, rows="equal", options={})
        return training.TrainingResult(device="a GPU", cases=(case,), targets={size.name: True}, missing=("a second GPU",))

    monkeypatch.setattr(run, "isolated", measured)
    result = run.run(file, lambda line: None, parts=("training",))
    assert seen == [0, 1, 1]
    assert [case.model for case in result.training.cases] == ["0.6B", "4B"]
    assert (result.training.missing, result.failures) == (("a second GPU",), {"training": "not in time"})


GIB = 2**30


@pytest.mark.parametrize(
    ("there", "packages", "part", "told"),
    [
        (
            Machine("H100", 1, 80 * GIB),
            (),
            "training",
            "0.6B, 1.7B beside the plain loop; 4B alone, as the plain loop has no room",
        ),
        (
            Machine("a", 1, 40 * GIB),
            (),
            "training",
            "0.6B beside the plain loop; 1.7B alone, as the plain loop has no room; nothing of 4B",
        ),
        (Machine("T4", 1, 8 * GIB), (), "training", "tokens per second: nothing of 0.6B, 1.7B, 4B: no room"),
        (Machine("H100", 1, 80 * GIB), (), "broadcast", "nothing: it needs two GPUs, of which there are 1"),
        (Machine("H100", 2, 80 * GIB), (), "broadcast", "seconds from one GPU to another by NCCL"),
        (Machine("H100", 2, 80 * GIB), ("vllm",), "broadcast", "nothing: it needs vllm, which is not installed"),
        (Machine("H100", 1, 80 * GIB), ("ray", "vllm"), "engine", "nothing: vllm, ray not installed"),
        (Machine(), (), "all parts", "whether the program works: without a GPU no target is judged"),
    ],
)
def test_what_it_will_be_able_to_say_is_told_ahead(monkeypatch, there, packages, part, told):
    monkeypatch.setattr(ahead, "find_spec", lambda name: None if name in packages else object())
    said = sayable(there, GpuBenchSettings(), run.PARTS)
    assert list(said) == [*(() if there.gpus else ("all parts",)), *run.PARTS]
    assert told in said[part]


def test_what_it_will_be_able_to_say_is_in_the_file_before_the_first_part(monkeypatch, tmp_path):
    file, lines = tmp_path / "gpu.json", []

    def stopped(work, *_, **__):
        if work is machine:
            return Machine("a GPU", 1, 80 * GIB)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "isolated", stopped)
    with pytest.raises(KeyboardInterrupt):
        run.run(file, lines.append, parts=("logprob", "engine"))
    written = msgspec.json.decode(file.read_bytes(), type=GpuBenchResult)
    assert list(written.ahead) == ["logprob", "engine"]
    assert all(f"  {part}: {what}" in lines for part, what in written.ahead.items())

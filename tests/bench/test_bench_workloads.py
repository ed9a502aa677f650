"""The workloads of ``asyncrl bench loop`` and their scripted models, and the comparison with a peer, without a run of either."""

import asyncio
import contextlib
import inspect
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
import torch
from made_time import made_time
from rich.console import Console
from transformers import Qwen3ForCausalLM

from asyncrl.bench import peers
from asyncrl.bench.loop import workload_runs
from asyncrl.bench.loop.script import CALL, END, SIZES, Script
from asyncrl.bench.loop.workload_runs import MeasurementPlan, describe, plan
from asyncrl.bench.loop.workloads import GROUP_SIZE, WARM_UP_STEPS, WORKLOADS, WorkloadFiles, make_files, recipe
from asyncrl.bench.own_process import MeasurementInterrupted, in_own_process
from asyncrl.bench.peers import peer, workload_tools
from asyncrl.bench.peers.peer import PeerDescription, PeerFailed, PeerResult, check_sampled_tokens, peer_python, run_peer
from asyncrl.bench.peers.workload_tools import MEAN_S, OUTLIER_S, PAGE_WORDS, call_seconds, read_page, turn_reward
from asyncrl.cli.main import main
from asyncrl.cli.outcome import ExitCode
from asyncrl.core.errors import ProcessDied, RecipeError
from asyncrl.core.measures.time_split import IdleShares, LearnerTime, TimeSplit
from asyncrl.core.messages import ToolCall
from asyncrl.core.task import Task
from asyncrl.envs import Action
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.run.measures.progress import RunProgress

EVERY_WORKLOAD = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda workload: workload.name)
CALLS = [(a, b, c) for a in range(10, 20) for b in range(20, 30) for c in range(30, 40)]
"""All that the scripted model can ask of the slow tool."""


@pytest.fixture(scope="module")
def materials(tmp_path_factory):
    folders = {name: tmp_path_factory.mktemp(name) for name in WORKLOADS}
    return {name: make_files(WORKLOADS[name], "1m", folders[name]) for name in WORKLOADS}


def test_slow_calls_take_what_the_issue_says():
    seconds = [call_seconds(*call) for call in CALLS]
    ordinary = [each for each in seconds if each != OUTLIER_S]
    assert 0.01 < 1 - len(ordinary) / len(seconds) < 0.03
    assert statistics.fmean(ordinary) == pytest.approx(MEAN_S, rel=0.1)
    assert max(ordinary) < OUTLIER_S
    assert statistics.median(ordinary) < 0.8 * MEAN_S  # the tail is on the right


def test_slow_calls_differ_by_seed_and_nothing_else():
    assert [call_seconds(*call) for call in CALLS] != [call_seconds(*call, seed=1) for call in CALLS]
    # The peer's process draws the same, whatever its hash seed.
    program = f"import workload_tools as w; print([w.call_seconds(*call) for call in {CALLS[:20]}])"
    where = {"PYTHONPATH": str(Path(workload_tools.__file__).parent), "PYTHONHASHSEED": "7"}
    other = subprocess.run([sys.executable, "-c", program], env=where, capture_output=True, text=True, check=True)
    assert json.loads(other.stdout) == [call_seconds(*call) for call in CALLS[:20]]


def test_pages_and_rewards_follow_from_their_arguments():
    assert read_page(11) == read_page(11) != read_page(12)
    assert len(read_page(11).split()) == PAGE_WORDS
    rewards = [turn_reward(" said ", [number]) for number in range(100)]
    assert rewards == [turn_reward("said", [number]) for number in range(100)]
    assert 30 < sum(rewards) < 70


@pytest.mark.parametrize(("size", "millions"), [("1m", 1), ("6m", 6)])
def test_models_have_about_the_size_they_are_called_by(tmp_path, size, millions):
    material = make_files(WORKLOADS["tools"], size, tmp_path)
    model = Qwen3ForCausalLM.from_pretrained(material.model)
    assert model.num_parameters() == pytest.approx(millions * 1e6, rel=0.1)


@EVERY_WORKLOAD
def test_the_model_plays_by_its_script(workload, materials):
    async def play() -> tuple[int, int, int, int]:
        environment = workload.environment()
        observation = await environment.reset(Task(id="0", prompt=workload.tasks()[0]["prompt"]))
        row = await chat.prompt(observation.messages, observation.tools)
        prompt, sampled = len(row), []
        while len(sampled) < workload.max_turns:
            said = model.generate(torch.tensor([row]), max_new_tokens=workload.max_turn_tokens, do_sample=True, top_k=0)
            sampled.append(said[0, len(row) :].tolist())
            text = chat.turn_text(sampled[-1])
            assert sampled[-1][-1] == chat.end_of_turn
            row = said[0].tolist()
            if CALL not in text:
                break
            call = json.loads(text.partition(CALL)[2].partition("</tool_call>")[0])
            result = await environment.step(Action("", (ToolCall(call["name"], call["arguments"]),)))
            assert result.fault is None
            assert not result.done
            row = row + await chat.delta(result.observation.messages)
        assert len(row) < workload.max_context
        return prompt, len(sampled), sum(map(len, sampled)), len(row)

    torch.manual_seed(0)
    model = Qwen3ForCausalLM.from_pretrained(materials[workload.name].model)
    chat = ChatFormat.load(str(materials[workload.name].model))
    if workload.name == "slow":
        workload = msgspec.structs.replace(workload, environment=_Hurried)
    if workload.name == "turns":
        workload = msgspec.structs.replace(workload, max_turns=2)
    prompt, turns, sampled, tokens = asyncio.run(play())
    match workload.name:
        case "short":
            assert prompt < 60
            assert sampled == 8 * (turns - 1) + 4
        case "turns":
            assert (turns, sampled) == (2, 60)
            page = (tokens - prompt - sampled) // turns
            assert 1450 < prompt + 8 * 30 + 7 * page < 1550
        case _:
            assert 180 < prompt < 220
            assert (turns, sampled) == (2, 56)


class _Hurried(WORKLOADS["slow"].environment):
    async def step(self, action: Action):
        (call,) = action.calls
        return await super().step(Action("", (msgspec.structs.replace(call, arguments=call.arguments | QUICK),)))


QUICK = dict(zip("abc", min(CALLS, key=lambda call: call_seconds(*call)), strict=True))


def test_a_script_in_which_a_token_stands_twice_is_refused():
    with pytest.raises(ValueError, match="'x' stands at two places"):
        Script(call=[("x",), ("y", "x")]).followers()


def test_both_may_follow_a_tool_where_the_script_says_so():
    script = Script(call=[("x", "y")], answer=[("z",)], again=True)
    assert script.followers()["<|resume|>"] == {"x", "y", "z"}
    assert script.followers()["<|respond|>"] == {"x", "y"}
    assert {script.followers()[token] for token in "xyz"} == {frozenset({END})}


@EVERY_WORKLOAD
def test_both_sides_describe_the_tool_in_the_same_words(workload):
    (tool,) = workload.environment.tools.values()
    plain = getattr(workload_tools, workload.tool)
    summary, _, parameters = inspect.getdoc(plain).partition("\n\nArgs:\n")
    assert (tool.name, tool.spec.description) == (plain.__name__, summary)
    told = {name: schema["description"] for name, schema in tool.spec.parameters["properties"].items()}
    assert told == dict(line.strip().split(": ") for line in parameters.splitlines())
    assert tool.spec.parameters["required"] == list(told)


@EVERY_WORKLOAD
def test_a_recipe_goes_on_after_the_measured_steps(workload, materials):
    material = materials[workload.name]
    deep = recipe(workload, "1m", material, ["buffer.pipeline_depth=3", "learner.data_parallel=2"])
    assert deep.steps == WARM_UP_STEPS + workload.steps + 4
    assert deep.learner.data_parallel == 2
    assert deep.batch.group_size == GROUP_SIZE


@pytest.mark.parametrize(
    ("key", "override"),
    [
        ("batch", "batch.group_size=4"),
        ("learner.lr", "learner.lr=1e-3"),
        ("seed", "seed=1"),
        ("sampling", "sampling.temperature=0.5"),
    ],
)
def test_what_the_peer_is_given_too_cannot_be_overridden(materials, key, override):
    with pytest.raises(RecipeError, match=f"^{re.escape(key)}: an override changes what every trainer is given"):
        recipe(WORKLOADS["tools"], "1m", materials["tools"], [override])


def test_a_description_says_all_that_the_program_reads(materials):
    description = describe(WORKLOADS["turns"], materials["turns"])
    assert msgspec.json.decode(msgspec.json.encode(description), type=PeerDescription) == description
    program = Path(peers.__file__).with_name("trl_grpo.py").read_text()
    assert set(re.findall(r'description\["(\w+)"\]', program)) == set(PeerDescription.__struct_fields__)
    assert "asyncrl" not in re.findall(r"^(?:from|import) (\w+)", program, re.MULTILINE)
    assert all(Path(path).exists() for path in (description.model, description.tasks, description.tools))


MEASURED = PeerResult(trajectories_per_s=20.0, seconds=6.4, sampled_tokens=56.0, tool_calls=1.0, failed_tool_calls=0.0)


def printing(**changed: float) -> str:
    """A program that says its last words and prints a result that is not what it should be."""
    return f"echo last words; echo '{msgspec.json.encode(msgspec.structs.replace(MEASURED, **changed)).decode()}'"


def environment_that(folder: Path, does: str) -> Path:
    """A virtual environment whose Python does something else."""
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.write_text(f"#!/bin/sh\n{does}\n")
    python.chmod(0o755)
    (folder / ".installed").touch()
    return folder


def test_a_missing_environment_names_the_command_that_makes_it(tmp_path):
    with pytest.raises(RecipeError, match="run `make bench-peers` in "):
        peer_python(tmp_path / ".venv-peers")


def test_a_peer_reads_the_description_and_its_last_line_is_the_result(tmp_path, materials):
    does = f"cat $2 >{tmp_path}/read; echo noise; echo '{msgspec.json.encode(MEASURED).decode()}'"
    environment = environment_that(tmp_path, does)
    description = describe(WORKLOADS["tools"], materials["tools"])
    assert run_peer("trl", description, tmp_path, environment) == MEASURED
    assert msgspec.json.decode((tmp_path / "read").read_bytes(), type=PeerDescription) == description


@pytest.mark.parametrize(
    ("does", "told"),
    [
        ("echo last words >&2; exit 3", "exit code 3: last words\nall its output is in LOG"),
        ("echo last words", "no result as its last line .*; all its output is in LOG"),
        (printing(failed_tool_calls=0.125), "12.5% of its tool calls failed; all its output is in LOG"),
        (printing(tool_calls=0.5), "its episodes called tools 0.50 times on average, .*; all its output is in LOG"),
        ("sleep 60", "longer than 0.2 s"),
    ],
)
def test_a_peer_that_fails_says_why(tmp_path, materials, monkeypatch, does, told):
    monkeypatch.setattr(peer, "RUN_S", 0.2 if "sleep" in does else 30.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = environment_that(tmp_path, does)
    with pytest.raises(PeerFailed, match=told.replace("LOG", re.escape(f"{tmp_path}/asyncrl-trl-"))):
        run_peer("trl", describe(WORKLOADS["tools"], materials["tools"]), tmp_path, environment)
    for log in tmp_path.glob("asyncrl-trl-*.log"):
        assert "last words" in log.read_text()


@pytest.mark.parametrize(
    ("ours", "chance", "agree"), [(55.0, 0.0, True), (54.0, 0.0, False), (54.0, 0.05, True), (53.0, 0.05, False)]
)
def test_sides_that_sample_other_numbers_of_tokens_are_not_compared(ours, chance, agree):
    with contextlib.nullcontext() if agree else pytest.raises(PeerFailed, match=f"56.00 sampled tokens with trl and {ours:.2f}"):
        check_sampled_tokens("trl", 56.0, ours, chance)


def test_only_where_lengths_vary_may_chance_part_the_sides():
    assert {name for name, workload in WORKLOADS.items() if workload.spread} == {"short"}
    # A call has 8 tokens and an answer 4; after each of up to four results both are as likely, and so in the last turn.
    lengths = [12, 20, 28, 36, 44, 48]
    shares = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 32]
    mean, square = (sum(share * length**power for share, length in zip(shares, lengths, strict=True)) for power in (1, 2))
    assert WORKLOADS["short"].spread == pytest.approx((square - mean**2) ** 0.5 / mean, abs=0.01)


@pytest.fixture
def measured(monkeypatch):
    """Stands in for the runs of both sides: who ran, in order, and how fast asyncrl is in each of its runs."""
    ran: list[str] = []
    rates = [50.0, 80.0, 60.0]

    def in_own_process(work, *arguments):
        if work is make_files:
            folder = arguments[-1]
            return WorkloadFiles(folder / "model", folder / "train.jsonl", folder / "evaluation.jsonl")
        ran.append("asyncrl")
        rate = rates[ran.count("asyncrl") - 1]
        return workload_runs._OwnRun(rate, 56.0, IdleShares(generators=rate / 100, learner=0.1), f"run {rate:g}")

    def run_of_peer(name, *_):
        ran.append(name)
        return MEASURED

    monkeypatch.setattr(workload_runs, "in_own_process", in_own_process)
    monkeypatch.setattr(workload_runs, "run_peer", run_of_peer)
    return ran


def test_the_sides_take_turns_and_medians_are_written(tmp_path, measured):
    results = workload_runs.run(MeasurementPlan(("tools",), ("1m",), "trl"), tmp_path / "loop.json", Console(file=io.StringIO()))
    assert measured == ["trl", "asyncrl"] * 3
    written = json.loads((tmp_path / "loop.json").read_bytes())["tools"]["1m"]
    assert written["asyncrl"] == {"trajectories_per_s": 60.0, "repetitions": [50.0, 80.0, 60.0], "sampled_tokens": 56.0}
    assert written["trl"]["trajectories_per_s"] == 20.0
    assert written["ratio"] == 3.0
    assert written["idle"] == {"generators": 0.6, "learner": 0.1}
    assert written["bottleneck"] == "run 60"
    assert workload_runs.view(results).row_count == 1


def test_a_comparison_of_sides_that_did_other_work_ends_the_command(tmp_path, measured, monkeypatch, capsys):
    shorter = msgspec.structs.replace(MEASURED, sampled_tokens=54.0)
    monkeypatch.setattr(workload_runs, "run_peer", lambda *_: shorter)
    monkeypatch.setattr(workload_runs, "peer_python", Path)
    options = ["--workload", "tools", "--model", "1m", "--peer", "trl", "--json", str(tmp_path / "loop.json")]
    assert main(["bench", "loop", *options]) == ExitCode.FAILED
    assert measured == ["asyncrl"]
    assert "54.00 sampled tokens with trl and 56.00 with asyncrl" in " ".join(capsys.readouterr().err.split())


def test_figures_are_of_the_measured_steps(materials):
    of_run = recipe(WORKLOADS["tools"], "1m", materials["tools"])
    episodes = of_run.batch.groups_per_step * GROUP_SIZE
    warm_up = msgspec.structs.replace(STEP, sampled_tokens=999_999, time=TimeSplit(seconds=1.0, learner=LearnerTime(waiting=1.0)))
    steps = [msgspec.structs.replace(STEP, sampled_tokens=tokens * episodes) for tokens in (55, 57)]
    run = workload_runs._measured(of_run, list(zip([100.0, 102.0, 104.0], [warm_up, *steps], strict=True)))
    assert run.trajectories_per_s == 2 * episodes / 4.0
    assert run.sampled_tokens == 56.0
    assert run.idle == IdleShares(generators=0.25, learner=0.125)
    assert run.bottleneck.startswith("learner-bound: in the last 2 training steps the learner trained for 75 % of the time")


STEP = RunProgress(
    step=1,
    steps=3,
    version=1,
    reward=0.5,
    time=made_time(training=0.75, waiting=0.125, publishing=0.125, idle=0.25, cores=0.5),
    sampled_tokens=1,
    staleness_mean=0.0,
    staleness_max=0.0,
    staleness_bound=1,
    running=0,
    committed=0,
    delivery_s=0.0,
    pause_s=0.0,
    pipeline_depth=1,
    bottleneck="of all steps so far",
    eta_s=0.0,
)


def test_a_process_that_dies_is_named_with_what_to_look_at():
    with pytest.raises(ProcessDied, match=r"the process that ran \w+\._exit died; .*`dmesg`"):
        in_own_process(os._exit, 1)


def test_without_a_peer_there_is_no_ratio(tmp_path, measured):
    wanted = MeasurementPlan(("short",), ("1m", "6m"), repetitions=1)
    workload_runs.run(wanted, tmp_path / "loop.json", Console(file=io.StringIO()))
    assert measured == ["asyncrl"] * 2
    written = json.loads((tmp_path / "loop.json").read_bytes())["short"]
    assert set(written) == {"1m", "6m"}
    assert all(set(result) == {"asyncrl", "idle", "bottleneck"} for result in written.values())


def test_a_run_that_the_user_stops_stops_the_benchmark(tmp_path, measured, monkeypatch):
    def interrupted(work, *arguments):
        if work is workload_runs._train:
            raise MeasurementInterrupted
        return play(work, *arguments)

    play = workload_runs.in_own_process
    monkeypatch.setattr(workload_runs, "in_own_process", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workload_runs.run(MeasurementPlan(("short",), ("1m",)), tmp_path / "loop.json", Console(file=io.StringIO()))


def test_all_means_each():
    assert plan("all", "all", None, 3, ()) == MeasurementPlan(tuple(WORKLOADS), tuple(SIZES))
    assert plan("slow", "6m", None, 1, ["a=1"], 2) == MeasurementPlan(("slow",), ("6m",), None, 1, ("a=1",), 2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--workload", "slows"], "--workload: there is no 'slows'; name one of short, tools, turns, slow, all"),
        (["--workload", "slow", "--model", "7b"], "--model: there is no '7b'; name one of 1m, 6m, all"),
        (["--workload", "slow", "--peer", "trx"], "--peer: there is no 'trx'; name one of trl"),
        (["--peer", "trl"], "--peer: this option needs a workload to measure; add --workload NAME"),
        (["--model", "1m"], "--model: this option needs a workload to measure; add --workload NAME"),
        (["--steps", "2"], "--steps: this option needs a workload to measure; add --workload NAME"),
        (["--repetitions", "3"], "--repetitions: this option needs a workload to measure; add --workload NAME"),
        (["--workload", "slow", "--override", "learner.lrr=1"], "learner.lrr"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path, capsys, measured, options, told):
    assert main(["bench", "loop", "--json", str(tmp_path / "loop.json"), *options]) == ExitCode.REFUSED
    assert told in capsys.readouterr().err
    assert measured == []

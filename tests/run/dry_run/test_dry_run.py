"""Dry run and launch never disagree: what a part of a run refuses when it starts, the plan has refused before."""

import ast
import inspect
from collections import Counter
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import ModuleType

import pytest
from broken_folders import ROOMY, Case, load_config, load_template, load_weights, track
from model_folders import SMALL, write_model
from refusal_cases import ASKING_VLLM, CASES
from rich.console import Console

import asyncrl.core.files.weight_files
import asyncrl.generators.chat_format
import asyncrl.generators.chat_template
import asyncrl.generators.template_choice
import asyncrl.generators.vllm.engine_arguments
import asyncrl.learners.reward_model
import asyncrl.learners.supported_model
import asyncrl.run.models.dequantised
import asyncrl.run.models.embedded_tokens
import asyncrl.run.tracking.tracker
import asyncrl.weights.checkpoint
from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.messages import Message
from asyncrl.run.dry_run import model_check
from asyncrl.run.dry_run.environment_trial import Rehearsed
from asyncrl.run.dry_run.model_check import ModelCheck
from asyncrl.run.dry_run.plan import make_plan
from asyncrl.run.dry_run.plan_view import plan_view
from asyncrl.run.dry_run.prompt_lengths import PromptSet
from asyncrl.run.recipe.compose import compose

REFUSALS: dict[tuple[ModuleType, str], tuple[str, ...] | str] = {
    (asyncrl.generators.chat_format, "ChatFormat.__init__"): ("no template",),
    (asyncrl.generators.chat_format, "ChatFormat.load"): ("no tokenizer", "cut tokenizer", "template not in UTF-8"),
    (asyncrl.generators.chat_format, "ChatFormat._control_tokens"): ("slow tokenizer",),
    (asyncrl.generators.chat_format, "ChatFormat._of"): ("no template for tools",),
    (asyncrl.generators.chat_template, "ChatTemplate._after_marker"): ("no content",),
    (asyncrl.generators.chat_template, "ChatTemplate._find_end_of_turn"): ("no syntax", "no end"),
    (asyncrl.generators.chat_template, "ChatTemplate._check_delta"): ("end at the end", "no start", "plain between"),
    (asyncrl.generators.chat_template, "ChatTemplate.check_reaches"): (
        "no tools",
        "no response",
        "tools left out",
        "system left out",
        "calls left out",
    ),
    (asyncrl.generators.chat_template, "ChatTemplate.check_follows"): ("no tools",),
    (asyncrl.generators.chat_format, "_named_ends"): ("ends",),
    (asyncrl.generators.chat_template, "ChatTemplate._check_tokens"): ("pieces",),
    (asyncrl.generators.template_choice, "templates_of"): ("no such variable",),
    (asyncrl.generators.vllm.engine_arguments, "check_cpu_arguments"): "the plan calls it",
    (asyncrl.generators.vllm.engine_arguments, "check_engine_arguments"): "the plan calls it",
    (asyncrl.generators.vllm.engine_arguments, "try_engine_arguments"): ("argument",),
    (asyncrl.learners.supported_model, "check_megatron"): "the plan calls it",
    (asyncrl.learners.supported_model, "supported_config"): ("no configuration",),
    (asyncrl.learners.supported_model, "_check_supported"): ("attention_bias", "model type"),
    (asyncrl.learners.supported_model, "_check_fp8"): ("fp8 of experts", "fp8 of sizes"),
    (asyncrl.core.files.weight_files, "stored_tensors"): (
        *("no weights", "pickled weights", "index without tensor"),
        *("index of other weights", "adapter"),
    ),
    (asyncrl.core.files.weight_files, "check_weights"): ("further tensors", "further files"),
    (asyncrl.core.files.weight_files, "check_tensor"): ("no tensor", "no output layer", "shape", "vocabulary", "type"),
    (asyncrl.core.files.weight_files, "_refuse_another_output"): ("another output layer",),
    (asyncrl.core.files.weight_files, "_index"): ("no index",),
    (asyncrl.core.files.weight_files, "_header"): ("cut weights", "pointer", "index without file", "a folder as file"),
    (asyncrl.weights.checkpoint, "Checkpoint.__init__"): ("no weights",),
    (asyncrl.weights.checkpoint, "Checkpoint.check"): "while training",
    (asyncrl.run.models.embedded_tokens, "check_embedded"): ("beyond the embedding", "an end beyond the embedding"),
    (asyncrl.run.models.dequantised, "plain_folder"): "the disk is full, or the process was killed",
    (asyncrl.run.models.dequantised, "check_dequantisable"): ("gptq", "unknown quantisation"),
    (asyncrl.learners.reward_model, "RewardModel.__init__"): "the plan looks for all weights of the classifiers that it knows",
    (asyncrl.learners.reward_model, "RewardModel.score"): "while training",
    (asyncrl.run.tracking.tracker, "Tracker._raise_failure"): ("damaged database", "deleted experiment"),
    (
        asyncrl.run.tracking.tracker,
        "Tracker._call_further",
    ): "the plan imports trackers beside MLflow; training calls them",
    (asyncrl.run.tracking.tracker, "Tracker._put"): "while training",
    (asyncrl.run.tracking.tracker, "Tracker.finish"): "at the end",
    (asyncrl.run.tracking.tracker, "check_database"): "of a run that is resumed, before anything starts",
}
"""For each function of those modules that refuses something: cases, at least as many as its refusals, or why there are none."""


def refusals(module: ModuleType) -> Iterator[str]:
    """The functions of a module that raise an error of their own making, each as often as it does."""

    def within(node: ast.AST, name: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if isinstance(child, ast.Raise) and child.exc is not None:
                yield name
            yield from within(child, f"{name}.{child.name}".removeprefix(".") if named else name)

    return within(ast.parse(inspect.getsource(module)), "")


def test_each_refusal_at_start_has_a_case():
    for module in {module for module, _ in REFUSALS}:
        for function, count in Counter(refusals(module)).items():
            told = REFUSALS.get((module, function))
            assert told is not None, f"{module.__name__}.{function} refuses something: name the cases"
            assert isinstance(told, str) or len(told) >= count, f"{module.__name__}.{function} has {count} refusals"
    for told in REFUSALS.values():
        assert isinstance(told, str) or set(told) <= {*CASES, *ASKING_VLLM}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path, SMALL)


def check(case: Case, folder: Path) -> None:
    """See that plan and start both refuse a case."""
    case.breaks(folder)
    overrides = [each.replace("HERE", str(folder)) for each in case.overrides]
    recipe = compose("quickstart", [f"model.path={folder}", f"run_dir={folder}/elsewhere", *overrides])
    with pytest.raises(RecipeError, match=case.told):
        make_plan(recipe, case.machine)
    if case.starts is not None:
        with pytest.raises(AsyncRLError):
            case.starts(folder)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_a_part_refuses_when_it_starts_the_plan_refuses(folder: Path, case: Case):
    check(case, folder)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in ASKING_VLLM if name != "argument"])
def test_what_vllm_refuses_when_it_starts_the_plan_refuses(folder: Path, name: str):
    check(ASKING_VLLM[name], folder)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("tried_apart")
def test_a_process_that_asks_vllm_says_what_it_refuses(folder: Path):
    check(ASKING_VLLM["argument"], folder)


@pytest.mark.usefixtures("tried_apart")
def test_a_sound_folder_is_taken(folder: Path):
    load_template(folder)
    load_config()(folder)
    load_weights(folder)
    track()(folder)
    plan = make_plan(compose("quickstart", [f"model.path={folder}", f"run_dir={folder}/new"]), ROOMY)
    assert not plan.remarks
    facts = {fact.topic: fact.found for fact in plan.facts}
    assert facts.keys() == {"vocabulary", "weights", "output layer", "turns", "prompt", "thoughts"}
    assert facts["output layer"] == "tied to the embedding"
    console = Console(file=StringIO(), width=200)
    console.print(plan_view(plan, compose("quickstart")))
    assert "a system message: reaches it; tools: reaches it" in console.file.getvalue()
    assert not (folder / "new").exists()


@pytest.mark.usefixtures("tried_apart")
def test_a_long_request_arrives_although_its_process_comes_up_slowly(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model_check, "SLOW_S", 0.01)
    recipe = compose("quickstart", [f"model.path={folder}", f"run_dir={folder}/new"])
    longer_than_a_pipe = [Message("user", "How many? " * 20_000)]
    seen = [(0, "one", longer_than_a_pipe, ())]
    notes: list[str] = []
    with ModelCheck(recipe, None) as check, pytest.raises(RecipeError, match="the longest, of task one, has 200,005 tokens"):
        check.tried(Rehearsed((), (), (PromptSet.of_shown("train", "asked", 1, seen),)), notes.append)
    assert notes == ["trying tokenizer and template takes longer than 0.01 s"]

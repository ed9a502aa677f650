"""Making the tiny model: measured success is real success, a short warm-up works, and the cache holds whole models only."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.cache_folder import CACHE_VARIABLE
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.envs.builtin.calculator import Calculator
from asyncrl.envs.builtin.lessons.calculator import CalculatorLessons
from asyncrl.envs.builtin.splits import split_of
from asyncrl.envs.lessons.demonstrations import Demonstration, demonstrate
from asyncrl.learners.tiny import TinyProgress, ensure_tiny_model
from asyncrl.learners.tiny.cache import COMPLETE, default_cache_root
from asyncrl.learners.tiny.conversations import Example, encode, pad, render
from asyncrl.learners.tiny.material import kinds_of, subjects_of
from asyncrl.learners.tiny.settings import Size, WarmUp
from asyncrl.learners.tiny.tokenizer import fit_tokenizer
from asyncrl.learners.tiny.warmup import Measurement, Rows, WarmUpFailed, config_of, spoken_logits, warm_up

CALCULATOR = ClassEnvironmentConfig(name="calculator")
SHORT = WarmUp(steps=3, lr_steps=1, batch_size=4, measure_every=2, skill=0.0, threads=1, training_tasks=60, held_out_tasks=30)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Two threads on a busy machine wait for each other, thirty times longer than one takes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(root: Path, seed: int = 0, settings: WarmUp = SHORT) -> tuple[Path, list[TinyProgress]]:
    seen: list[TinyProgress] = []
    return ensure_tiny_model({"": CALCULATOR}, seed, seen.append, root, settings), seen


def ideal(tasks: Sequence[Task]) -> list[Demonstration]:
    return demonstrate(lambda task: Calculator(), [(task, CalculatorLessons().ideal(task)) for task in tasks])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[TinyProgress]]:
    return make(tmp_path_factory.mktemp("tiny"))


def test_a_short_warm_up_gives_a_folder_that_loads(made: tuple[Path, list[TinyProgress]]):
    folder, seen = made
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert isinstance(model, Qwen3ForCausalLM)
    assert model.config.vocab_size % 64 == 0
    assert len(tokenizer) <= model.config.vocab_size
    assert model.config.eos_token_id == tokenizer.eos_token_id
    fractions = [progress.fraction for progress in seen]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)


def test_progress_tells_how_many_tasks_are_demonstrated(made: tuple[Path, list[TinyProgress]]):
    told = [each.text for each in made[1] if "demonstrated" in each.text]
    last, of, *rest = told[-1].split()
    assert (last, of, " ".join(rest[1:3])) == (rest[0], "of", "tasks demonstrated")


def test_found_the_second_time(made: tuple[Path, list[TinyProgress]]):
    folder, _ = made
    before = (folder / COMPLETE).stat().st_mtime_ns
    again, seen = make(folder.parent)
    assert (again, seen, (again / COMPLETE).stat().st_mtime_ns) == (folder, [], before)


def test_same_seed_same_weights_other_seed_other_place(made: tuple[Path, list[TinyProgress]], tmp_path: Path):
    folder, _ = made
    twin, _ = make(tmp_path)
    other, _ = make(tmp_path, seed=1)
    weights = "model.safetensors"
    assert twin.name == folder.name
    assert (twin / weights).read_bytes() == (folder / weights).read_bytes()
    assert other.name != folder.name
    assert (other / weights).read_bytes() != (folder / weights).read_bytes()


@pytest.mark.parametrize("damage", ["cut short", "a file missing", "never completed", "no longer what it was"])
def test_a_broken_entry_is_made_anew(made: tuple[Path, list[TinyProgress]], tmp_path: Path, damage: str):
    folder = Path(shutil.copytree(made[0], tmp_path / made[0].name))
    weights, digests = folder / "model.safetensors", (folder / COMPLETE).read_bytes()
    match damage:
        case "cut short":
            weights.write_bytes(weights.read_bytes()[:1000])
        case "a file missing":
            (folder / "tokenizer.json").unlink()
        case "never completed":
            (folder / COMPLETE).unlink()
        case "no longer what it was":
            (folder / COMPLETE).write_bytes(b"{")
    again, seen = make(tmp_path)
    assert again == folder
    assert seen
    assert (folder / COMPLETE).read_bytes() == digests
    assert [entry.name for entry in tmp_path.iterdir()] == [folder.name]


def test_two_at_once_share_one_entry(tmp_path: Path):
    with ThreadPoolExecutor(2) as pool:
        (first, _), (second, _) = pool.map(make, [tmp_path, tmp_path])
    assert first == second
    assert [entry.name for entry in tmp_path.iterdir()] == [first.name]
    assert make(tmp_path)[1] == []


def test_nothing_is_left_of_a_failed_warm_up(tmp_path: Path):
    with pytest.raises(WarmUpFailed, match="100% are wanted; try another seed"):
        make(tmp_path, settings=msgspec.structs.replace(SHORT, skill=1.0))
    assert list(tmp_path.iterdir()) == []


def test_what_a_judge_sees_decides(tmp_path: Path):
    """The tasks are held out, and their rewards count where nothing tempts: there is no `+` in those tasks."""
    wanted = msgspec.structs.replace(SHORT, skill=0.9)
    asked: list[Task] = []

    def judge(folder: Path, tasks: Mapping[str, Sequence[Task]], fails_at: str) -> dict[str, list[float]]:
        assert (folder / "tokenizer.json").is_file()
        asked.extend(tasks[""])
        return {"": [0.0 if fails_at in task.question else 1.0 for task in tasks[""]]}

    for fails_at, refused in (("+", False), ("-", True)):
        seen: list[TinyProgress] = []
        trying = partial(judge, fails_at=fails_at)
        with pytest.raises(WarmUpFailed, match=r"solves .* of 'calculator'") if refused else nullcontext():
            ensure_tiny_model({"": CALCULATOR}, 0, seen.append, tmp_path / fails_at, wanted, trying)
    assert {split_of(task.question) for task in asked} == {"evaluation"}


def test_several_environments_are_taught_together(tmp_path: Path):
    """Each counts the same, however many kinds of tasks it has, and each is asked about in the end."""
    one, three = (ClassEnvironmentConfig(name="calculator", options={"max_operations": count}) for count in (1, 3))
    subjects = subjects_of({"one": one, "three": three}, 0, SHORT)
    kinds = {name: kinds_of(subject, 0, lambda: None) for name, subject in subjects.items()}
    assert [len(kinds["one"]), len(kinds["three"])] == [1, 3]
    assert [sum(kind.weight for kind in each) for each in kinds.values()] == [1.0, 1.0]
    assert [kind.weight for kind in kinds["three"]] == [0.25, 0.25, 0.5]
    asked: list[str] = []

    def judge(folder: Path, tasks: Mapping[str, Sequence[Task]]) -> dict[str, list[float]]:
        asked.extend(tasks)
        return {name: [1.0] * len(some) for name, some in tasks.items()}

    folder = ensure_tiny_model({"one": one, "three": three}, 0, lambda progress: None, tmp_path, SHORT, judge)
    assert asked == ["one", "three"]
    assert folder.name != ensure_tiny_model({"one": one}, 0, lambda progress: None, tmp_path, SHORT, judge).name


def test_wrong_options_are_refused(tmp_path: Path):
    wrong = ClassEnvironmentConfig(name="calculator", options={"max_operation": 2})
    with pytest.raises(RecipeError, match="max_operations"):
        ensure_tiny_model({"": wrong}, 0, lambda progress: None, tmp_path)


def test_the_cache_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert default_cache_root() == tmp_path / "tiny"
    monkeypatch.delenv(CACHE_VARIABLE)
    assert default_cache_root() == Path.home() / ".cache" / "asyncrl" / "tiny"


def test_measured_success_is_that_of_real_decoding():
    """A model that knows a few tasks by heart and no others: decode one token at a time, and compare."""
    demonstrations = ideal(Calculator.make_tasks("train", 24, 0, max_operations=1))
    tokenizer = fit_tokenizer(render(demonstrations), 1024)
    rows = encode(demonstrations, tokenizer)
    settings = WarmUp(lr_steps=5, batch_size=16, measure_every=18, threads=1)
    config = config_of(tokenizer, Size(), (tokenizer.eos_token_id,))
    seen: list[Measurement] = []
    model, measured = warm_up(config, [Rows(1.0, rows[:8], rows, rows)], settings, 18, 0, seen.append)
    solved = [follows_greedily(model, row) for row in rows]
    assert seen == [measured]
    assert measured.success == pytest.approx(sum(solved) / len(solved))
    assert 0 < sum(solved) < len(solved)


@torch.no_grad()
def test_padding_changes_no_logits():
    demonstrations = ideal(Calculator.make_tasks("train", 6, 0))
    tokenizer = fit_tokenizer(render(demonstrations), 1024)
    rows = encode(demonstrations, tokenizer)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config_of(tokenizer, Size(), (tokenizer.eos_token_id,)))
    together, _ = spoken_logits(model, pad(rows))
    alone = [spoken_logits(model, pad([row]))[0] for row in rows]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_what_all_rows_begin_with_is_computed_once_and_changes_no_logits(monkeypatch: pytest.MonkeyPatch):
    beginning = [7, *range(20, 150)]
    rows = [
        Example((*beginning, 3, 4, 5), (False,) * 132 + (True, True)),
        Example((*beginning, 9, 8, 1, 2, 3), (False,) * 131 + (True, False, True, True, True)),
    ]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config_of(fit_tokenizer([], 1024), Size(), (0,)))
    forward, lengths = model.model.forward, list[int]()

    def watched(input_ids: torch.Tensor, **more: Any) -> Any:
        lengths.append(input_ids.numel())
        return forward(input_ids=input_ids, **more)

    monkeypatch.setattr(model.model, "forward", watched)
    together, targets = spoken_logits(model, pad(rows))
    assert lengths == [130, 2 * 5]
    monkeypatch.undo()
    each = [model(torch.tensor([row.token_ids])).logits[0, :-1][torch.tensor(row.spoken[1:])] for row in rows]
    assert targets.tolist() == [4, 5, 9, 1, 2, 3]
    torch.testing.assert_close(together, torch.cat(each), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def follows_greedily(model: Qwen3ForCausalLM, row: Example) -> bool:
    """Decode the spoken parts one token at a time, without looking ahead."""
    written: list[int] = []
    for token, spoken in zip(row.token_ids, row.spoken, strict=True):
        chosen = model(torch.tensor([written])).logits[0, -1].argmax().item() if spoken else token
        if chosen != token:
            return False
        written.append(token)
    return True


def test_a_model_in_the_cache_is_found_without_torch() -> None:
    """Importing torch and transformers would cost every launch several seconds."""
    code = "import sys, asyncrl.learners.tiny; sys.exit(bool({'torch', 'transformers', 'tokenizers'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

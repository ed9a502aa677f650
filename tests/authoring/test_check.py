"""Each mistake that people make is found, with its place and a remedy; and nothing is found where there is none."""

import inspect
import re
from pathlib import Path

import faulty_environments
import pytest
from model_folders import SMALL, write_model

from asyncrl.authoring import check as check_module
from asyncrl.authoring import episode_checks
from asyncrl.authoring.check import Checked, check
from asyncrl.authoring.check_view import check_view
from asyncrl.authoring.episode_checks import EpisodeChecks
from asyncrl.authoring.findings import Severity
from asyncrl.authoring.subject import compose_for_author
from asyncrl.core.errors import RecipeError
from asyncrl.core.messages import Message
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.learners.tiny.tokenizer import fit_tokenizer


@pytest.fixture(autouse=True)
def _importable_in_another_process(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")


@pytest.fixture(autouse=True)
def _still_waiting_when_it_is_cancelled(monkeypatch):
    """Have a call that is to be cancelled last until then, however late that is."""
    cancelled = EpisodeChecks._cancelled

    async def lasting(checks, tools) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(faulty_environments.Swallowing, "seconds", 3600.0)
            await cancelled(checks, tools)

    monkeypatch.setattr(EpisodeChecks, "_cancelled", lasting)


def checked(name: str, *overrides: str, model: str | None = None) -> Checked:
    (one,) = check(compose_for_author(f"faulty_environments:{name}", overrides), model, lambda note: None)
    return one


def test_a_sound_environment_has_no_findings_and_is_measured(tmp_path: Path):
    fit_tokenizer(["user: 1? assistant: 2"], 1024).save_pretrained(tmp_path)
    found = checked("Sound", model=str(tmp_path))
    assert found.findings == ()
    assert found.figures is not None
    assert (found.train, found.evaluation, found.figures.episodes, found.figures.rewards) == (30, 30, 100, (0.0, 1.0))
    assert "in order" in next(iter(check_view([found]))).plain


@pytest.mark.parametrize("turns", [1, 3])
def test_episodes_of_few_turns_are_answered_too(turns: int):
    assert checked("Sound", f"environment.max_turns={turns}").findings == ()


@pytest.mark.parametrize(
    ("name", "kind", "problem"),
    [
        ("Blocking", "blocking", "`time.sleep` in an async method stops all episodes"),
        ("Blocking", "blocking", "keeps the event loop of all episodes from running"),
        ("Undocumented", "tools", "tool halve has no docstring"),
        ("Replaced", "tools", "tool halve is replaced by a later method of the same name"),
        ("Constant", "rewards", "is rewarded with 0.5"),
        ("NotFinite", "episodes", "returned nan"),
        ("Shared", "shared state", "plays differently beside 99 others: turn "),
        ("Random", "determinism", "something else another time: turn "),
        ("RandomTasks", "tasks", "made a second time with the same seed"),
        ("HashedTasks", "tasks", "another one in another process"),
        ("Overlapping", "tasks", "equal training tasks but for the id"),
        # Threads that other tests have left behind may open or close a file meanwhile.
        ("NeverClosing", "close", "100 closed episodes left (9[5-9]|10[0-5]) open files or sockets behind"),
        ("Swallowing", "cancellation", "catches the cancellation"),
        ("Swallowing", "cancellation", "after its episode was cancelled"),
        ("Breaking", "hostile calls", "TypeError"),
    ],
)
def test_a_mistake_is_found(name: str, kind: str, problem: str, once: "dict[str, Checked]"):
    if name not in once:
        once[name] = checked(name)
    found = [each for each in once[name].findings if each.check == kind and re.search(problem, each.problem)]
    assert found, once[name].findings
    assert name != "Random" or "shared state" not in {each.check for each in once[name].findings}, "one cause, one error"
    assert all(each.severity is Severity.ERROR and each.remedy for each in found)
    kinds = {each.check for each in once[name].findings if each.severity is Severity.ERROR}
    assert kinds <= {kind, "episodes"}, "one mistake is not told as others"


def test_what_blocks_for_long_is_told_without_playing_a_hundred_episodes_of_it():
    found = checked("BlockingForLong")
    (seen,) = (each for each in found.findings if "keeps the event loop" in each.problem)
    assert seen.check == "blocking"
    assert "100 episodes at once would take minutes" in seen.remedy
    assert found.figures is None


def test_what_hangs_is_named_while_the_check_waits_for_it(monkeypatch):
    monkeypatch.setattr(check_module, "CHECK_S", 1.0)
    monkeypatch.setattr(check_module, "SAID_S", 0.5)
    said: list[str] = []
    try:
        (one,) = check(compose_for_author("faulty_environments:Hanging"), None, said.append)
    finally:
        faulty_environments.Hanging.may_end.set()
    assert any("did not end in 1 s" in each.problem for each in one.findings)
    assert any("faulty_environments:Hanging: still at " in line for line in said)


@pytest.mark.parametrize(("crowd_s", "episodes"), [(3600.0, 100), (0.0, 10)])
def test_of_a_slow_environment_in_another_process_ten_episodes_at_once_do(monkeypatch, crowd_s: float, episodes: int):
    monkeypatch.setattr(episode_checks, "CROWD_S", crowd_s)
    monkeypatch.setattr(check_module, "RemoteEnvironmentConfig", ClassEnvironmentConfig)  # as if it ran elsewhere
    found = checked("Sound")
    assert found.figures is not None
    assert found.figures.episodes == episodes
    assert [(each.severity, each.check) for each in found.findings] == [(Severity.WARNING, "episodes")] * (episodes == 10)


def test_calls_that_are_late_among_many_are_told_as_that_and_not_as_chance_or_shared_state():
    (found,) = checked("Overrun").findings
    assert (found.severity, found.check, found.place) == (
        Severity.WARNING, "deadlines", "faulty_environments:Overrun, tool double",
    )  # fmt: skip
    assert "while 100 episodes were played at once" in found.problem


def test_a_tool_that_no_made_up_call_fits_is_told_and_an_example_helps():
    (told,) = checked("Unmade").findings
    assert (told.severity, told.check, told.place) == (Severity.WARNING, "made-up calls", "faulty_environments:Unmade, tool open")
    assert "made up for it fits, so it was not tried: Expected `str` matching regex" in told.problem
    assert "examples=[...]" in told.remedy
    assert checked("Exemplary").findings == ()


def test_a_tool_that_raises_in_every_call_is_told():
    (told,) = checked("Broken").findings
    assert (told.severity, told.check, told.place) == (Severity.WARNING, "made-up calls", "faulty_environments:Broken, tool open")
    raised = r"open\(\) of faulty_environments.py:\d+ raised AttributeError: .* no attribute 'doors'"
    assert re.search(rf"none of \d+ calls made up for it had a result: {raised}", told.problem)


def test_an_error_that_breaks_no_episode_is_told():
    (told,) = checked("Unscored").findings
    assert (told.severity, told.check, told.place) == (Severity.WARNING, "errors", "faulty_environments:Unscored")
    assert re.search(r"faulty_environments.py:\d+ raised ConnectionError: the judge is away \(\d+ times\)", told.problem)


def test_long_answers_that_differ_are_quoted_where_they_differ():
    (told,) = checked("Timed").findings
    assert re.search(r"turn 0 is answered with \.\.\.'.* at (\d+)', then \.\.\.'.* at (?!\1')\d+'$", told.problem), told.problem


def test_messages_that_differ_in_more_than_their_texts_are_quoted_whole():
    one, other = ([Message(role, "Begin.")] for role in ("system", "user"))
    first, second = episode_checks._where_they_differ(one, other)
    assert "role='system'" in first
    assert "role='user'" in second


@pytest.fixture(scope="module")
def once() -> "dict[str, Checked]":
    return {}


def test_findings_name_the_line(once: "dict[str, Checked]"):
    (found,) = (each for each in checked("Undocumented").findings)
    file = inspect.getsourcefile(faulty_environments)
    line = faulty_environments.Undocumented.halve.__code__.co_firstlineno
    assert found.place == f"Undocumented.halve ({file}:{line})"


def test_prompts_are_looked_at_through_the_template_of_a_model(tmp_path: Path):
    fit_tokenizer(["user: 1? assistant: 2"], 1024).save_pretrained(tmp_path)
    (found,) = checked("Markup", model=str(tmp_path)).findings
    assert (found.severity, found.check) == (Severity.WARNING, "template")
    assert "a special token of this model" in found.problem
    (long,) = checked("Wordy", model=str(tmp_path)).findings[:1]
    assert long.severity is Severity.ERROR
    assert "no turn fits" in long.problem
    (missing,) = checked("Sound", model=str(tmp_path / "nothing")).findings
    assert (missing.check, missing.place) == ("template", str(tmp_path / "nothing"))
    assert "holds no tokenizer" in missing.problem
    assert any("model.max_context is 1,024" in each.problem for each in checked("Wordy").findings)


def test_a_recipe_s_own_model_is_taken(tmp_path: Path):
    write_model(tmp_path / "model", SMALL)
    recipe = tmp_path / "words.yaml"
    recipe.write_text(
        "name: words\nsteps: 1\nmodel: {path: MODEL, max_context: 64}\nenvironment: {name: faulty_environments:Wordy}\n".replace(
            "MODEL", str(tmp_path / "model")
        )
    )
    (one,) = check(compose_for_author(str(recipe), ["sampling.max_turn_tokens=16"]), None, lambda note: None)
    assert any("tokens with this model, and model.max_context is 64: no turn fits" in each.problem for each in one.findings)


def test_rewards_that_are_compared_and_that_no_episode_reports():
    (found,) = checked("Sound", "algorithm.advantage={kind: gdpo, rewards: {reward: 1.0, brevity: 0.5}}").findings
    assert (found.check, found.place) == ("rewards", "algorithm.advantage.rewards")
    assert found.problem == "an episode reports no metric 'brevity'; it reports malformed_calls, tool_calls, tool_errors"
    penalised = ["environment.malformed_penalty=0.1", "algorithm.advantage={kind: gdpo, rewards: {malformed_penalty: 1.0}}"]
    assert checked("Sound", *penalised).findings == (), "generators report it"


def test_what_is_no_environment_is_refused():
    for name, problem in (
        ("calculators", "is no environment and no recipe"),
        ("faulty_environments:Soud", "did you mean `Sound`"),
        ("nowhere.yaml", "there is no recipe file"),
    ):
        with pytest.raises(RecipeError, match=problem):
            check(compose_for_author(name), None, lambda note: None)

import json

import msgspec
import pytest
from made_summary import SUMMARY
from rich.console import Console

from asyncrl.buffers.ledger import Ledger, LedgerState
from asyncrl.core.plug_ins.error_counts import CountedError
from asyncrl.run.folder.buffer_folder import journal_of
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.summary import (
    EvaluationEnds,
    PlayedEvaluation,
    RewardEnds,
    Status,
    Summary,
    TokenTotals,
    training_reward,
)
from asyncrl.run.recipe.compose import compose
from asyncrl.run.views.end_view import end_view


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    recipe = compose("quickstart", [f"run_dir={tmp_path_factory.mktemp('runs')}"])
    return recipe, RunFolder.create(recipe)


def shown(summary: Summary, folder) -> list[str]:
    console = Console(width=200)
    with console.capture() as captured:
        for part in end_view(summary, *folder):
            console.print(part)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_disk_that_refuses_the_summary_is_told(tmp_path):
    path = tmp_path / "gone" / "summary.json"
    told = SUMMARY.recorded(path)
    assert told.status is Status.FAILED
    assert told.reason == f"{path} could not be written: No such file or directory"
    stopped = Summary(status=Status.INTERRUPTED, reason="stopped by the user").recorded(path)
    assert stopped.status is Status.INTERRUPTED
    assert stopped.reason.startswith("stopped by the user; ")


def test_a_reason_that_names_a_file_whose_name_is_not_utf8_is_written(tmp_path):
    path = tmp_path / "summary.json"
    Summary(status=Status.FAILED, reason="caf\udce9 is full").recorded(path)
    assert Summary.read(path).reason == "caf\\udce9 is full"


def test_tasks_that_were_left_out_are_counted_by_source(folder):
    summary = msgspec.structs.replace(SUMMARY, too_long={"tasks.train (a.jsonl)": 1_200}).leaving_out({"b.jsonl": [3, 4]})
    said = "1,200 of tasks.train (a.jsonl), 2 of tasks.evaluation (b.jsonl): their prompts leave no room"
    assert any(said in line for line in shown(summary, folder))
    assert not any("left out" in line for line in shown(SUMMARY, folder))


def test_the_file_has_these_keys_and_no_others(tmp_path):
    path = tmp_path / "summary.json"
    SUMMARY.write(path)
    read = json.loads(path.read_text())
    assert list(read) == [
        "status",
        "reason",
        "format",
        "steps",
        "wall_s",
        "training_s",
        "reward",
        "eval",
        "staleness",
        "tokens",
        "trajectories_per_s",
        "idle",
        "bottleneck",
        "versions_published",
        "ledger",
        "errors",
        "too_long",
        "resumes",
        "warnings",
    ]
    assert read["status"] == "completed"
    assert read["eval"] == {"first": 0.41, "last": 0.95, "most_versions": 1, "skipped": [], "played": []}
    assert read["staleness"] == {"mean": 1.1, "max": 3, "bound": 4}
    assert read["tokens"] == {"generated": 1_240_000, "trained": 1_100_000}
    assert read["warnings"] == ["the rewards of every group were equal"]
    assert read["idle"] == {"generators": 0.03, "learner": 0.22}
    ledger = read["ledger"]
    states = ["running", "committed", "taken", "trained", "filtered", "expired", "failed"]
    assert ledger["issued"] == sum(ledger[state] for state in states)
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]
    assert Summary.read(path) == SUMMARY


def test_a_resumed_run_that_does_not_come_far_says_no_less_than_before():
    before = msgspec.structs.replace(SUMMARY, status=Status.INTERRUPTED, reason="stopped by the user", resumes=2)
    early = Summary(status=Status.FAILED, reason="the disk is gone").going_on_from(before)
    assert early == msgspec.structs.replace(before, status=Status.FAILED, reason="the disk is gone", resumes=3)
    assert Summary(status=Status.FAILED, wall_s=30.0).going_on_from(before, 20.0).wall_s == before.wall_s + 20.0
    newer = msgspec.structs.replace(SUMMARY.ledger, issued=1010, running=20)
    redone = Summary(status=Status.FAILED, reason="!", steps=55, wall_s=300.0, versions_published=61, ledger=newer)
    told = redone.going_on_from(before)
    assert (told.steps, told.wall_s, told.versions_published, told.ledger, told.resumes) == (60, 300.0, 61, newer, 3)
    assert (told.tokens, told.evaluation) == (before.tokens, before.evaluation)


def test_a_resumed_run_forgets_nothing_of_training_steps_that_were_done_again():
    broken, other = (
        CountedError(method=name, file="own.py", line=1, kind="E", problem="raised E", times=73) for name in ("reward", "add")
    )
    before = msgspec.structs.replace(SUMMARY, steps=12, errors=(broken, other))
    fewer = msgspec.structs.replace(broken, times=59)
    further = msgspec.structs.replace(
        SUMMARY, steps=14, errors=(fewer,), tokens=TokenTotals(generated=1_000, trained=1_100_000), bottleneck=None
    )
    told = further.going_on_from(before)
    assert told.errors == (broken, other)
    assert (told.tokens.generated, told.bottleneck) == (before.tokens.generated, before.bottleneck)
    more = msgspec.structs.replace(broken, times=80)
    assert msgspec.structs.replace(further, errors=(more,)).going_on_from(before).errors == (more, other)


def test_a_resumed_run_that_comes_further_tells_of_itself():
    before = msgspec.structs.replace(SUMMARY, status=Status.INTERRUPTED, reason="stopped by the user", steps=40)
    assert SUMMARY.going_on_from(before) == msgspec.structs.replace(SUMMARY, resumes=1)


def test_it_takes_the_buffer_s_own_counts():
    ledger = Ledger(LedgerState())
    ledger.issue(4, drawn=True)
    summary = msgspec.structs.replace(SUMMARY, ledger=ledger.counts())
    assert json.loads(msgspec.json.encode(summary))["ledger"]["running"] == 1


def test_a_run_that_never_began_has_a_summary(tmp_path):
    path = tmp_path / "summary.json"
    Summary(status=Status.FAILED, reason="no Ray").write(path)
    read = json.loads(path.read_text())
    assert read["eval"] == {"first": None, "last": None, "most_versions": 1, "skipped": [], "played": []}
    assert read["ledger"]["issued"] == 0


def test_a_failure_begins_with_its_reason_and_ends_with_the_logs(folder):
    failed = msgspec.structs.replace(SUMMARY, status=Status.FAILED, reason="generator-1 died: [errno 9] exit code 3")
    lines = shown(failed, folder)
    assert lines[0] == "Failed: generator-1 died: [errno 9] exit code 3"
    assert lines[-1] == f"Logs: {folder[1].logs}"


@pytest.mark.parametrize(
    ("steps", "ends", "told"),
    [
        (0, RewardEnds(), "none"),
        (1, RewardEnds(0.5, 0.5), "0.500 in 1 training step"),
        (10, RewardEnds(0.25, 0.25), "0.250 in 10 training steps"),
        (11, RewardEnds(0.25, 0.5), "0.250 in the first 10 training steps, 0.500 in the last 10"),
    ],
)
def test_the_training_reward_is_of_steps_that_there_were(steps, ends, told):
    assert training_reward(msgspec.structs.replace(SUMMARY, steps=steps, reward=ends)) == told


def test_a_completed_run_ends_with_its_folder(folder):
    lines = shown(SUMMARY, folder)
    text = "\n".join(lines)
    for told in (
        "60 in 1 min 12 s, 60 versions published; 4 min 12 s with making the model, starting and ending",
        "0.250 in the first 10 training steps, 0.875 in the last 10",
        "0.410 at first, 0.950 at last",
        "at most 3 of 4",
        "1.24 M generated",
        "960 trained",
        "3 with missing episodes",
    ):
        assert told in text
    assert "Warning: the rewards of every group were equal" in lines
    read, report, compare = lines[-4:-1]
    assert read.endswith(f"asyncrl show {folder[1].path} --sort reward")
    assert report.endswith(f"asyncrl report {folder[1].path}")
    assert compare.endswith(f"mlflow ui --backend-store-uri sqlite:///{folder[1].database}")
    assert lines[-1] == f"Run folder: {folder[1].path}"


def test_groups_that_lost_what_they_stood_on_are_told_with_the_last_reason(folder):
    lost = "failed: lost engine, host or service"
    ledger = msgspec.structs.replace(SUMMARY.ledger, reasons={lost: 89}, examples={lost: "task t: the judge m gave no score"})
    text = " ".join("".join(shown(msgspec.structs.replace(SUMMARY, ledger=ledger), folder)).replace("│", " ").split())
    assert (
        "played again 89 times a group that lost its engine, host or service, or was handed back; the last: task t: the judge m"
        in text
    )


def test_errors_in_the_users_code_are_listed_at_the_end(folder):
    errors = tuple(
        CountedError("reward", "/me/env.py", line, "KeyError", "raised KeyError: 'a'", "", times=line, example="task t")
        for line in range(1, 7)
    )
    told = CountedError("reward", "/me/env.py", 9, "EnvironmentBroken", "cannot go on: no score", "", times=1, example="task t")
    errors = (told, *errors)
    lines = shown(msgspec.structs.replace(SUMMARY, errors=errors), folder)
    assert "Error in your code: reward() of env.py:1 raised KeyError: 'a' (once)" in lines
    assert "Error in your code: reward() of env.py:4 raised KeyError: 'a' (4 times)" in lines
    assert "Episode failed: reward() of env.py:9 cannot go on: no score (once)" in lines
    assert f"2 other errors of episodes: see {folder[1].summary}" in lines


def test_what_a_model_wrote_cannot_steer_the_terminal(folder):
    hostile = "\x1b]0;title\x07 \u202ea \x9b"
    error = CountedError("reward", "/me/env.py", 1, "ValueError", f"raised ValueError: {hostile}")
    text = "\n".join(shown(msgspec.structs.replace(SUMMARY, reason=hostile, warnings=(hostile,), errors=(error,)), folder))
    assert text.count("␛]0;title␇ \\u202ea \\x9b") == 3
    assert not set("\x1b\x07\u202e\x9b") & set(text)


def test_nothing_is_made_of_a_run_without_a_step(folder):
    lines = shown(Summary(status=Status.INTERRUPTED, reason="stopped by the user"), folder)
    assert lines == ["Interrupted: stopped by the user", f"Run folder: {folder[1].path}"]


def test_evaluations_that_were_left_out_are_counted_and_named(folder):
    ends = EvaluationEnds.of([PlayedEvaluation(0, 0, 0, 0.41), PlayedEvaluation(126, 126, 130, 0.95)], range(60, 130, 5))
    told = " ".join(" ".join(shown(msgspec.structs.replace(SUMMARY, evaluation=ends), folder)).replace("│", "").split())
    assert "0.410 at first, 0.950 at last; episodes of up to 5 policy versions (evaluation.pinned is off)" in told
    assert "14 evaluations left out, of versions 60, 65, 70, 75, 80, 85, 90, 95, 100, 105 ... 125 (14)" in told


@pytest.mark.parametrize(
    ("status", "steps", "offered"),
    [(Status.FAILED, 0, False), (Status.FAILED, 1, True), (Status.INTERRUPTED, 0, True), (Status.COMPLETED, 60, False)],
)
def test_a_resume_is_offered_where_it_can_help(tmp_path, status, steps, offered):
    """A run that failed before its first training step would fail again."""
    recipe = compose("quickstart", [f"run_dir={tmp_path}"])
    folder = RunFolder.create(recipe)
    journal_of(folder.path).mkdir(parents=True)
    ended = msgspec.structs.replace(SUMMARY, status=status, steps=steps, reason="the reason")
    assert any("launch --resume" in line for line in shown(ended, (recipe, folder))) is offered

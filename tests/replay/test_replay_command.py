"""``asyncrl replay`` as a user runs it, on the folder of a run, with the ranks as processes of their own."""

import io
import re
import shutil
from pathlib import Path

import msgspec
import pytest
from made_run import make_run, small_recipe
from rich.console import Console

from asyncrl.cli.main import main
from asyncrl.core.episode import Episode
from asyncrl.replay.job import Job
from asyncrl.replay.rank_group import ReplayFailed
from asyncrl.replay.replay import Request, replay
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.views.live_view import LiveView

pytestmark = pytest.mark.timeout(900)  # each command starts processes that import Megatron

POISONED = 5
"""The step in which one reward is not what the environment said."""


def poisoned(step: int, episode: Episode) -> Episode:
    is_it = step == POISONED and episode.group_id % 2 and episode.sample_index == 2
    return msgspec.structs.replace(episode, reward=40.0) if is_it else episode


@pytest.fixture(scope="module")
def run(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    parent = tmp_path_factory.mktemp("runs")
    # Made-up log-probabilities of the engine are far from the model's: no loss may leave tokens out because of that.
    kept = ["algorithm.loss={kind: cispo}", "algorithm.correction={anchor: proximal_recomputed, weight: token}"]
    return make_run(small_recipe(tiny_model, parent, *kept), poisoned)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["replay", *arguments]) == code
    return " ".join(re.sub(r"[│╭╮╰╯─├┼┤]", " ", "".join(capsys.readouterr())).split())


def test_a_poisoned_reward_is_found_in_the_first_place_and_can_be_left_out(run: RunFolder, capsys):
    text = printed(capsys, str(run.path), "--step", str(POISONED), "--top", "3", "--gap", "2")
    assert "Bit-equal: loss, gradient norm and weights of 1 step are those recorded" in text
    (row,) = re.findall(r"The reward of row (\S+), 40, stands out", text)
    assert text.partition("Rows that carried the step")[2].partition("stale gap text ")[2].startswith(f"{row} ")
    assert text.count("task-") == 3
    assert len(re.findall(r"Tokens that carried the step", text)) == 1
    assert "Tokens where learner and engine differ most" in text
    assert re.search(r"by staleness 0: [\d.]+ \(\d+\)", text)
    changed = printed(capsys, str(run.path), "--step", f"{POISONED}:6", "--without", row, "learner.lr=1e-9")
    assert "Bit-equal" in changed, "what is asked with changes does not change what is compared"
    assert changed.count("0.001 0.001 1e-09") == 2


def test_a_hook_sees_every_token_and_may_stop(run: RunFolder, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("looking.py").write_text(
        "from pathlib import Path\n"
        "from asyncrl.replay.hook import SeenMicroBatch, StopReplay\n"
        "def look(seen: SeenMicroBatch) -> None:\n"
        "    assert len(seen.ratio) == len(seen.pull) == len(seen.mask) == len(seen.tokens) > 0\n"
        "    assert (seen.gradient_norm > 0).any()\n"
        f"    Path({str(tmp_path)!r}, 'seen').open('a').write(f'{{seen.step}} {{len(seen.names)}}\\n')\n"
        "    if seen.step == 4:\n"
        "        raise StopReplay('seen enough')\n"
    )
    text = printed(capsys, str(run.path), "--step", "3:5", "--hook", "looking:look")
    assert "The hook stopped the replay in step 4: seen enough" in text
    seen = [line.split() for line in Path("seen").read_text().splitlines()]
    assert sum(int(rows) for step, rows in seen if step == "3") == 8
    assert {step for step, _ in seen} == {"3", "4"}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--step", "9"], "has trained 6 steps, so there is no step 9"),
        (["--step", "2", "batch.group_size=2"], "batch.group_size: has no effect on a replay"),
        (["--step", "2", "--without", "999/1"], "no step that is replayed has 999/1"),
        (["--step", "2", "--without", "2,3"], "step 2 has nothing left to train"),
        (["--step", "2", "learner.lr=fast"], "learner.lr"),
        (["--step", "2", "--hook", "no_such:thing"], "there is no module"),
    ],
)
def test_what_cannot_be_replayed_is_refused(run: RunFolder, capsys, arguments: list[str], problem: str):
    assert problem in printed(capsys, str(run.path), *arguments, code=2)


def test_what_a_run_that_goes_on_has_removed_meanwhile_is_told(run: RunFolder, tmp_path: Path, monkeypatch):
    """The run keeps its newest checkpoints, and the replay began when there was an older one."""
    copy = RunFolder(Path(shutil.copytree(run.path, tmp_path / run.path.name)))

    def lost(job: Job, folder: Path, seen: object) -> None:
        assert job.checkpoint is not None
        shutil.rmtree(job.checkpoint)
        raise ReplayFailed("rank 0 failed: there is no such file")

    monkeypatch.setattr("asyncrl.replay.replay.run_ranks", lost)
    asked = Request(run=copy.path, first=3, last=3)
    with (
        LiveView(Console(file=io.StringIO()), "replay") as view,
        pytest.raises(ReplayFailed, match=r"version-000002 is no longer"),
    ):
        replay(asked, view)

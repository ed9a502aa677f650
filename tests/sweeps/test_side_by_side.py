"""How many points run side by side: GPUs divided among them, and room for all."""

from pathlib import Path

import psutil
import pytest
from made_sweep import made_sweep

from asyncrl.core.errors import RecipeError
from asyncrl.run.nodes.cluster_nodes import Nodes
from asyncrl.run.nodes.machine import Machine
from asyncrl.sweeps import side_by_side
from asyncrl.sweeps.side_by_side import check_resumed, check_room, devices
from asyncrl.sweeps.sweep import RunSize
from asyncrl.sweeps.sweep_folder import PointState, SweepFolder

GIB = 1 << 30


@pytest.fixture(autouse=True)
def five_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "usable", lambda: 5)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_gpus_are_divided_among_those_side_by_side(monkeypatch):
    assert devices(1) == [None]
    assert devices(2) == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7, 6,5,4,3")
    assert devices(5) == ["7", "6", "5", "4", "3"]
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert devices(6) == [None] * 6


@pytest.mark.parametrize(
    ("parallel", "each", "told"),
    [
        (6, 0.0, "there are 5 GPUs for 6 runs side by side; give at most 5"),
        (3, 2.0, "3 runs side by side have 1 GPUs each, and one takes 2; give at most 2"),
        (2, 4.0, "2 runs side by side have 2 GPUs each, and one takes 4; give at most 1"),
    ],
)
def test_more_than_there_are_gpus_for_is_refused(parallel, each, told):
    with pytest.raises(RecipeError) as refused:
        devices(parallel, each)
    assert str(refused.value) == f"--parallel: {told}"


@pytest.mark.parametrize(
    ("runs", "cluster", "told"),
    [
        ([RunSize(3 * GIB)] * 4, False, "take about 9.0 GiB, and 8.0 GiB are free; give at most 2"),
        ([RunSize(5 * GIB)] * 4, False, "take about 15.0 GiB, and 8.0 GiB are free; give at most 1"),
        (
            [RunSize(GIB, 2.0)] * 4,
            True,
            "take 6 GPUs, and the cluster has 4; give at most 2, or a recipe of fewer engines (generators.count)",
        ),
        ([RunSize(GIB, 2.0)] * 4, False, ""),
        ([RunSize()] * 4, True, ""),
        ([RunSize(GIB), RunSize(2 * GIB), RunSize(5 * GIB)], False, ""),  # though three of the largest would not fit
        (
            [RunSize(GIB), RunSize(5 * GIB), RunSize(2 * GIB), RunSize(2 * GIB)],
            False,
            "take about 9.0 GiB, and 8.0 GiB are free; give at most 2",
        ),
    ],
)
def test_more_than_there_is_room_for_is_refused(runs, cluster, told):
    machine = Machine(memory=16 * GIB, free=8 * GIB, cores=8, gpus=4, cluster=Nodes((), driver="") if cluster else None)
    check_room(runs, 1, machine)
    if not told:
        check_room(runs, 3, machine)
        return
    with pytest.raises(RecipeError) as refused:
        check_room(runs, 3, machine)
    assert str(refused.value) == f"--parallel: 3 runs side by side {told}"


@pytest.mark.parametrize(
    ("running", "size", "cluster", "told", "most"),
    [
        (
            1,
            RunSize(3 * GIB),
            False,
            "take about 9.0 GiB besides what those have that run already, and 8.0 GiB are free; give at most 3",
            3,
        ),
        (
            2,
            RunSize(5 * GIB),
            False,
            "take about 15.0 GiB besides what those have that run already, and 8.0 GiB are free; give at most 3",
            3,
        ),
        (1, RunSize(GIB, 1.5), True, "take 6 GPUs, and the cluster has 4; give at most 2, or a recipe of fewer engines", 2),
    ],
)
def test_those_that_run_already_count_among_those_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: int, size: RunSize, cluster: bool, told: str, most: int
):
    machine = Machine(memory=32 * GIB, free=8 * GIB, cores=8, gpus=4, cluster=Nodes((), driver="") if cluster else None)
    monkeypatch.setattr(Machine, "for_runs", lambda: machine)
    sweep = made_sweep(seeds=(0, 1, 2), size=size)
    folder = SweepFolder.create(str(tmp_path), sweep, {point.name: "" for point in sweep.points})
    states = [PointState.RUNNING] * running + [PointState.MISSING] * 3
    states += [PointState.COMPLETED] * (len(sweep.points) - len(states))
    state_of = dict(zip(sweep.points, states, strict=True))
    monkeypatch.setattr(folder, "state_of", lambda point: (state_of[point], None))
    with pytest.raises(RecipeError) as refused:
        check_resumed(folder, folder.read(), 40)
    assert f"--parallel: {running + 3} runs side by side {told}" in str(refused.value)
    with pytest.raises(RecipeError, match=f"give at most {most}"):
        check_resumed(folder, folder.read(), most + 1)
    check_resumed(folder, folder.read(), most)


def test_a_resume_needs_room_for_what_is_missing_and_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    free = psutil.virtual_memory().available
    sweep = made_sweep(size=RunSize(free * 2 // 5))
    folder = SweepFolder.create(str(tmp_path), sweep, {point.name: "" for point in sweep.points})
    check_resumed(folder, folder.read(), 2)
    with pytest.raises(RecipeError, match="4 runs side by side take about"):
        check_resumed(folder, folder.read(), 40)
    states = dict(
        zip(sweep.points, (PointState.COMPLETED, PointState.RUNNING, PointState.FAILED, PointState.MISSING), strict=True)
    )
    monkeypatch.setattr(folder, "state_of", lambda point: (states[point], None))
    check_resumed(folder, folder.read(), 40)

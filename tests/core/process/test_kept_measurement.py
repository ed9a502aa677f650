"""Measurements that are kept: made once for a kind of processor, the same for all processes."""

import logging
import multiprocessing

import msgspec
import pytest

from asyncrl.core.files.cache_folder import CACHE_VARIABLE
from asyncrl.core.process import processor
from asyncrl.core.process.kept_measurement import kept_measurement


class Seconds(msgspec.Struct, frozen=True):
    taken: float


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    return tmp_path / "speeds"


class Watch:
    """Measures another number each time."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return Seconds(float(self.calls))


def test_what_was_measured_is_not_measured_again(cache):
    watch = Watch()
    assert [kept_measurement("speed", ["torch 1", 64], Seconds, watch) for _ in range(3)] == [Seconds(1.0)] * 3
    assert watch.calls == 1


def test_other_versions_sizes_and_processors_are_measured_anew(cache, monkeypatch, tmp_path):
    watch = Watch()
    for about in (["torch 1", 64], ["torch 2", 64], ["torch 1", 65]):
        kept_measurement("speed", about, Seconds, watch)
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: another\nflags\t\t: fpu bf16\n\nprocessor\t: 1\n")
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    kept_measurement("speed", ["torch 1", 64], Seconds, watch)
    assert watch.calls == 4
    assert processor.instructions() == {"fpu", "bf16"}


def test_speeds_and_cores_of_the_moment_make_no_other_processor(monkeypatch, tmp_path):
    kinds = set()
    for number, megahertz in ((0, 2600), (3, 3100)):
        (tmp_path / "cpuinfo").write_text(f"processor\t: {number}\nmodel name\t: one\ncpu MHz\t\t: {megahertz}\n")
        monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
        kinds.add(processor.processor_kind())
    assert kinds == {"model name: one"}
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "gone")
    assert (processor.processor_kind(), processor.instructions()) == ("", set())


def measure_with_others(barrier, number, found):
    def measure():
        barrier.wait(60)  # all have begun to measure before any has finished
        return Seconds(float(number))

    found.put(kept_measurement("race", [], Seconds, measure).taken)


def test_processes_that_measure_at_once_agree(cache):
    context = multiprocessing.get_context("fork")
    barrier, found = context.Barrier(3), context.Queue()
    processes = [context.Process(target=measure_with_others, args=(barrier, number, found)) for number in range(3)]
    for process in processes:
        process.start()
    told = {found.get(timeout=60) for _ in processes}
    for process in processes:
        process.join(60)
    assert len(told) == 1
    assert [path.suffix for path in cache.iterdir()] == [".json"]


def test_a_damaged_file_is_measured_again_and_mended(cache, caplog):
    watch = Watch()
    kept_measurement("speed", [], Seconds, watch)
    (path,) = cache.iterdir()
    path.write_bytes(b'{"taken":')
    with caplog.at_level(logging.WARNING):
        assert kept_measurement("speed", [], Seconds, watch) == Seconds(2.0)
    assert str(path) in caplog.text
    assert kept_measurement("speed", [], Seconds, watch) == Seconds(2.0)


def test_where_nothing_can_be_kept_it_is_measured_all_the_same(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert kept_measurement("speed", [], Seconds, Watch()) == Seconds(1.0)
    assert "cannot be kept" in caplog.text

import re
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_episodes import row, tree
from reported import HOSTILE, STEPS, Checked, episode, make_run, page_of

from asyncrl.cli.main import main
from asyncrl.cli.outcome import ExitCode
from asyncrl.core.plug_ins.error_counts import CountedError
from asyncrl.episodes.visible import visible
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.summary import NO_GROUPS, Status


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with everything that a report shows."""
    return make_run(tmp_path_factory.mktemp("tracked"), tracked=True)


@pytest.fixture(scope="module")
def page(run):
    return page_of(run)


def test_it_is_well_formed_small_and_loads_nothing(page):
    checked = Checked(page)
    assert len(page.encode()) < 300_000
    assert {"img", "link", "iframe", "object", "base"}.isdisjoint(checked.tags)
    assert {"src", "srcset", "action", "style-src"}.isdisjoint(name for name, _ in checked.attributes)
    assert all(value.startswith("#") for name, value in checked.attributes if name == "href")
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    assert ("content", policy) in checked.attributes
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|innerHTML|document\.write|eval\(", page)


def test_what_runs_and_episodes_hold_is_text(page):
    checked = Checked(page)
    assert checked.tags["script"] == 2
    assert not [name for name, _ in checked.attributes if name.startswith("on")]
    shown = visible(HOSTILE)
    assert f"all groups are alike {shown}" in checked.text
    assert f"broken {shown}" in checked.text
    assert f"search {shown}: timeout: {shown}"[:160] in checked.text
    assert "\x1b" not in page
    assert "\u202e" not in page
    first = checked.data["episodes"][0]
    assert first["title"].endswith(shown)
    assert any(call == f"search {shown}, 3.00 s, timeout: {shown}" for call, good in first["turns"][0][4] if not good)


def test_errors_of_the_users_code_are_listed(tmp_path):
    calm = {"ledger": NO_GROUPS, "rows": [row()]}
    error = CountedError("reward", "/me/env.py", 41, "KeyError", f"raised KeyError: {HOSTILE}", times=1_234)
    with_one = page_of(make_run(tmp_path, errors=(error,), **calm))
    assert f"reward() of env.py:41 raised KeyError: {visible(' '.join(HOSTILE.split()))}" in Checked(with_one).text
    assert '<td class="n">1,234</td>' in with_one
    nothing = '<td colspan="2">nothing</td>'
    assert nothing not in with_one
    assert nothing in page_of(make_run(tmp_path, **calm))


def test_it_says_how_many_tasks_were_left_out(tmp_path):
    left_out = make_run(tmp_path, rows=[row()], too_long={"tasks.train (a.jsonl)": 1_200})
    assert "1,200 of tasks.train (a.jsonl)" in Checked(page_of(left_out)).text


def test_it_shows_the_metrics_that_have_values(page):
    checked = Checked(page)
    labels = [value for name, value in checked.attributes if name == "aria-label"]
    assert labels.count("reward/mean") == 1
    assert {"learner", "generators", "staleness", "share of trained tokens by staleness", "format"} <= set(labels)
    assert "my/metric" not in labels
    last = [value for name, value in checked.attributes if name == "data-last"]
    assert {"60 %", "30 %", "10 %", "75 %", "25 %"} <= set(last)


def test_a_curve_has_its_unit_and_says_what_it_shows_whatever_its_name_depends_on(page):
    shown = re.sub("<wbr>", "", page)
    for name, meaning in (
        ("latency/episode_p99", "how long an episode took"),
        ("tool/look_up/seconds_p50", "a call of `look_up`"),
    ):
        assert re.search(rf'title="[^"]*{meaning}[^"]*">{name}</span> <small>s</small>', shown), name


def test_the_picker_has_the_episodes_at_the_top_of_each_order(page):
    episodes = Checked(page).data["episodes"]
    assert len(episodes) == STEPS + 1
    assert sum("evaluation" in each["title"] for each in episodes) == 1
    for each in episodes:
        sampled = sum(times for version, times in each["versions"] if version >= 0)
        assert len(each["engine"]) == sampled
        assert sum(times for _, times in each["fates"]) == len(each["texts"]) == each["length"]


def test_each_trajectory_of_an_episode_says_which_it_is_and_shows_the_tree(tmp_path):
    shown = {each["title"]: each for each in Checked(page_of(make_run(tmp_path, rows=tree()))).data["episodes"]}
    whose = ("trajectory 0 of 3 (solver)", "trajectory 1 of 3 (critic)", "trajectory 2 of 3 (solver)")
    assert [*sorted(shown)] == [f"training step 7 · of-three · {each}" for each in whose]
    for number, each in enumerate(shown[title] for title in sorted(shown)):
        assert (each["shared"], each["parent"]) == ((0, None), (6, 0), (4, 0))[number]
        (drawn,) = [text for name, text in each["facts"] if name == "trajectories"]
        lines = drawn.split("\n")
        assert [line.startswith("->") for line in lines] == [place == number for place in range(3)]
        assert "1 critic: 17 tokens, the first 6 those of 0; begun because of other role; not trained" in lines[1]


def test_several_runs_show_the_changed_keys_first(run, tmp_path):
    other = make_run(tmp_path, "learner.lr=3e-5", status=Status.FAILED, reason="the disk is full")
    text = Checked(page_of(run, other)).text
    assert text.index("Changed recipe keys") < text.index("learner.lr") < text.index("Overview")
    before = text[: text.index("Overview")]
    assert "3e-05" in before
    assert "learner.weight_decay" not in before
    assert f"{other.path.name} failed:" in text
    assert "It is shown without metrics: its file mlflow-run, which names them, is gone." in text


def test_metrics_in_a_damaged_database_are_told_as_missing(tmp_path):
    folder = make_run(tmp_path)
    folder.tracked_as.write_text("0" * 32)
    folder.database.write_bytes(b"not a database" * 100)
    text = Checked(page_of(folder)).text
    assert f"cannot read the metrics of {folder.path.name}" in text
    assert "file is not a database" in text


def test_a_run_that_has_only_begun_is_reported_with_what_is_missing(tmp_path):
    folder = make_run(tmp_path)
    folder.summary.unlink()
    for file in (folder.path / "trajectories").iterdir():
        file.unlink()
    text = Checked(page_of(folder)).text
    assert "It has no summary.json: it still runs, or it was killed." in text
    assert "It has tracked no metrics yet." in text
    assert "tracking.trajectories" in text
    assert "no value" not in text


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


@given(text=texts, reward=st.floats(), weight=st.floats(width=32))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_an_episode_holds_the_page_is_well_formed(tmp_path_factory, text, reward, weight):
    hostile = episode(1, text, reward=reward)
    hostile["weights"] = hostile["logprobs"] = [weight] * len(hostile["token_ids"])
    checked = Checked(page_of(make_run(tmp_path_factory.mktemp("run"), rows=[hostile])))
    assert checked.tags["script"] == 2
    assert checked.data["episodes"][0]["title"] == visible(f"training step 1 · {text}")


def test_a_long_run_keeps_the_page_small(tmp_path):
    rows = [episode(step, "x" * 200) for step in range(1, 1501)]
    page = page_of(make_run(tmp_path, rows=rows))
    assert len(page.encode()) < 300_000
    assert len(Checked(page).data["episodes"]) <= 6 * 8


def test_the_command_writes_beside_the_run_or_where_it_is_told(tmp_path, capsys):
    folder = make_run(tmp_path)
    assert main(["report", str(folder.path)]) == ExitCode.COMPLETED
    told = capsys.readouterr().out
    assert f"Report: {folder.path / 'report.html'}" in told
    assert "It is shown without metrics" in told
    assert main(["report", str(folder.path), "--output", str(tmp_path / "a.html")]) == ExitCode.COMPLETED
    assert (tmp_path / "a.html").read_bytes() == (folder.path / "report.html").read_bytes()


def test_runs_of_one_name_are_told_apart_by_the_folders_above_them(tmp_path, capsys):
    first = make_run(tmp_path / "a" / "runs")
    for place in ("b", "c/runs"):
        shutil.copytree(first.path, tmp_path / place / first.path.name)
    folders = [str(tmp_path / place / first.path.name) for place in ("a/runs", "b", "c/runs")]
    assert main(["report", *folders, "--output", str(tmp_path / "page.html")]) == ExitCode.COMPLETED
    names = [f"a/runs/{first.path.name}", f"b/{first.path.name}", f"c/runs/{first.path.name}"]
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines() if "without metrics" in line] == names
    text = Checked((tmp_path / "page.html").read_text()).text
    assert all(name in text for name in names)


def test_the_command_refuses_what_is_no_run_and_names_a_damaged_file(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == ExitCode.REFUSED
    folder = make_run(tmp_path)
    assert main(["report", str(folder.path), "--output", "/proc/a.html"]) == ExitCode.REFUSED
    assert "cannot write '/proc/a.html': No such file or directory; name a file that you may" in capsys.readouterr().err
    (folder.path / "trajectories" / "broken.parquet").write_bytes(b"half")
    assert main(["report", str(folder.path)]) == ExitCode.FAILED
    assert "broken.parquet" in capsys.readouterr().err


@pytest.mark.parametrize("output", ["no/folder.html", "", ".", "circle.html"])
def test_an_output_that_cannot_be_a_file_is_a_usage_error_before_anything_is_read(tmp_path, monkeypatch, capsys, output):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "circle.html").symlink_to("circle.html")
    with pytest.raises(SystemExit) as end:
        main(["report", "no/run", "--output", output])
    assert end.value.code == ExitCode.REFUSED
    assert f"{output!r} must be a file in a folder that exists" in capsys.readouterr().err


def test_a_run_that_is_named_in_two_ways_is_reported_once(tmp_path):
    folder = make_run(tmp_path)
    (tmp_path / "link").symlink_to(folder.path)
    one, other = tmp_path / "one.html", tmp_path / "other.html"
    assert main(["report", str(folder.path), "--output", str(one)]) == ExitCode.COMPLETED
    assert main(["report", f"{folder.path}/", str(tmp_path / "link"), "--output", str(other)]) == ExitCode.COMPLETED
    assert one.read_bytes() == other.read_bytes()


def test_a_folder_whose_name_is_no_text_is_reported_without_its_episodes(tmp_path):
    folder = make_run(tmp_path)
    renamed = folder.path.rename(folder.path.with_name("\udcff<b>"))
    text = Checked(page_of(RunFolder(renamed))).text
    assert r"\udcff<b>" in text
    assert "rename the folder" in text


def test_metrics_that_are_gone_are_told(tmp_path):
    folder = make_run(tmp_path)
    folder.tracked_as.write_text("0123")
    text = Checked(page_of(folder)).text
    assert "which is gone" in text
    assert not folder.database.exists()

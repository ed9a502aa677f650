from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.hub import is_hub_id
from asyncrl.core.recipe.decode import decode_recipe
from asyncrl.core.recipe.environment import RemoteEnvironmentConfig
from asyncrl.core.recipe.loss import GspoLossConfig
from asyncrl.core.recipe.trajectories import AllTrajectoriesConfig, SampledTrajectoriesConfig
from asyncrl.learners.tiny.settings import CONTEXT_LENGTH
from asyncrl.run.folder.config_yaml import resolved_yaml
from asyncrl.run.models.model_shape import TINY
from asyncrl.run.recipe.compose import SHIPPED_FOLDER, compose, quoted, shipped_recipes


@pytest.fixture
def write(tmp_path: Path):
    def write(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    return write


def refused(recipe: str, *overrides: str) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        compose(recipe, overrides)
    return caught.value


@pytest.mark.parametrize(
    "text", ["/a b", "/it's", '/"a"', "/a\\b", "/a\\'b", "/a${x}", "/a$b", "/a,b=c", "/a\\", "/{a}[b](c)", ""]
)
def test_a_text_that_is_quoted_is_meant_whatever_it_holds(text: str):
    assert compose("quickstart", [f"environment.options.note={quoted(text)}"]).environment.options["note"] == text


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_composes_and_reads_back(name, write):
    recipe = compose(name)
    assert compose(write("back.yaml", resolved_yaml(recipe))) == recipe
    assert recipe.model.path != TINY or recipe.model.max_context <= CONTEXT_LENGTH


# Pieces of what OmegaConf, Hydra and YAML read as something else than text.
PIECES = [
    "$",
    "{",
    "}",
    "${",
    "${b}",
    "${oc.env:HOME}",
    "\\",
    "'",
    '"',
    " ",
    "\n",
    "\r",
    "\t",
    ":",
    "#",
    "-",
    "=",
    "<<",
    "~",
    "*",
    "&",
    "!",
]
PIECES += [
    "%",
    "@",
    "`",
    "|",
    ">",
    ",",
    "[",
    "]",
    "???",
    "1e3",
    "1_0",
    "0x1",
    "1:30",
    "2020-01-01",
    "yes",
    "null",
    ".inf",
    ".",
    "a",
]
PIECES += ["\x00", "\x7f", "\x85", "\u2028", "\ufeff", "\ud800", "\U0001f600", "# @package hydra\n"]
TEXT = st.lists(st.sampled_from(PIECES), max_size=5).map("".join) | st.text(max_size=8)
SCALAR = TEXT | st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.binary(max_size=4)
VALUE = st.recursive(SCALAR, lambda value: st.lists(value, max_size=3) | st.dictionaries(TEXT | st.integers(), value, max_size=3))


# A recipe takes long to compose, so each holds many values.
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXT, TEXT, st.dictionaries(TEXT, VALUE, min_size=4, max_size=16), st.floats(1e-300, 1e300))
def test_any_recipe_that_is_written_reads_back_equal(write, path: str, run_dir: str, options: dict[str, Any], lr: float):
    sections = {"model": {"path": path}, "environment": {"name": "a:B", "options": options}, "learner": {"lr": lr}}
    try:
        recipe = decode_recipe({"name": "x", "steps": 3, "run_dir": run_dir, **sections})
    except RecipeError as error:
        assume(False)
        raise AssertionError from error
    assume("???" not in (path, run_dir) and "???" not in texts(options))  # compose() gives no such recipe: see below
    assume(not is_hub_id(path))  # compose() would ask the hub for it
    back = compose(write("back.yaml", resolved_yaml(recipe)))
    assert back == recipe
    assert repr(back) == repr(recipe), "True is equal to 1"


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for entry in value.values() for text in texts(entry)]
    return [text for entry in value for text in texts(entry)] if isinstance(value, list) else [value]


def test_what_an_interpolation_gives_is_kept_as_it_is(write, monkeypatch):
    monkeypatch.setenv("ODD", "a${b}\\${oc.env:HOME}")
    options = r"{a: '${oc.env:ODD}', b: 'x\${y}', c: '\${oc.env:HOME}'}"
    recipe = compose("quickstart", [f"environment.options={options}", r"tracking.experiment=a\${b}"])
    assert recipe.environment.options == {"a": "a${b}\\${oc.env:HOME}", "b": "x${y}", "c": "${oc.env:HOME}"}
    assert recipe.tracking.experiment == "a${b}"
    assert compose(write("back.yaml", resolved_yaml(recipe))) == recipe


def test_a_value_to_be_filled_in_is_missing_wherever_it_comes_from(monkeypatch):
    monkeypatch.setenv("ODD", "???")
    assert refused("quickstart", "environment.options={a: [1, '${oc.env:ODD}']}").place == "environment.options.a[1]"


@pytest.mark.parametrize(
    "override", ["hydra.run.dir=x", "+hydra.verbose=true", "++hydra.job.chdir=true", "~hydra", "hydra/launcher=basic"]
)
def test_what_is_meant_for_hydra_is_refused_on_the_command_line(override):
    error = refused("quickstart", override)
    assert error.place.startswith("hydra")
    assert "run_dir" in error.remedy


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        ("defaults: [quickstart, _self_]\nhydra: {run: {dir: x}}\n", ""),
        ("defaults: [other, _self_]\n", "defaults: [quickstart, _self_]\nhydra: {verbose: true}\n"),
        ("defaults: [quickstart, other, _self_]\n", "# @package _global_\nhydra: {job: {chdir: true}}\n"),
    ],
)
def test_a_section_for_hydra_is_refused_in_any_file_of_a_recipe(write, mine, other):
    write("other.yaml", other)
    error = refused(write("mine.yaml", mine))
    assert error.place == "hydra"
    assert ("other.yaml" if other else "mine.yaml") in error.problem


def test_the_quickstart_is_shipped_and_short():
    assert "quickstart" in shipped_recipes()

    text = (SHIPPED_FOLDER / "quickstart.yaml").read_text()
    assert len(text.splitlines()) < 60


def test_overrides_set_keys_that_the_yaml_holds_and_keys_that_it_does_not():
    recipe = compose("quickstart", ["learner.lr=1e-4", "learner.weight_decay=1", "tracking.uri=http://x", "seed=7"])
    assert recipe.learner.lr == 1e-4
    assert recipe.learner.weight_decay == 1.0
    assert recipe.tracking.uri == "http://x"
    assert recipe.seed == 7


def test_a_key_taken_out_has_its_default_again():
    assert compose("quickstart", ["~learner.lr"]).learner.lr == 1e-6


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.loss={kind: gspo, clip_low: 0.1}", "algorithm.loss.clip_high=0.01"],
        ["algorithm.loss.clip_high=0.01", "algorithm.loss={kind: gspo, clip_low: 0.1}"],
        ["algorithm.loss.clip_high=0.5", "+algorithm.loss={kind: gspo, clip_low: 0.1, clip_high: 0.01}"],
        ["algorithm.loss={kind: cispo, clip_high: 0.5}", "algorithm.loss={kind: gspo, clip_low: 0.1, clip_high: 0.01}"],
        ["~algorithm.loss", "algorithm.loss={kind: gspo, clip_low: 0.1, clip_high: 0.01}"],
    ],
)
def test_a_section_of_another_kind_takes_the_place_of_the_recipes(write, overrides):
    """Of a run's own recipe, too, which has every key of every section."""
    whole = write("whole.yaml", resolved_yaml(compose("quickstart", ["algorithm.loss.low=0.3"])))
    assert compose(whole, overrides).algorithm.loss == GspoLossConfig(clip_low=0.1, clip_high=0.01)
    same = compose(whole, ["algorithm.loss={kind: dppo, high: 0.4}"]).algorithm.loss
    assert (same.low, same.high) == (0.3, 0.4)
    assert "as algorithm.loss={kind: gspo, ...}, which takes its place" in str(refused(whole, "algorithm.loss.kind=gspo"))


def test_a_section_whose_kinds_are_told_apart_by_keep_takes_the_place_of_the_recipes(write):
    whole = write("whole.yaml", resolved_yaml(compose("quickstart", ["tracking.trajectories={keep: sample, count: 16}"])))
    assert compose(whole, ["tracking.trajectories={keep: all}"]).tracking.trajectories == AllTrajectoriesConfig()
    assert compose(whole, ["tracking.trajectories={keep: sample}"]).tracking.trajectories == SampledTrajectoriesConfig(count=16)


def test_a_section_whose_kind_is_left_out_is_of_the_usual_kind_beside_one_of_another():
    remote = compose("quickstart", ["environment={kind: remote, urls: ['ws://127.0.0.1:1']}"]).environment
    assert isinstance(remote, RemoteEnvironmentConfig)
    added = compose("quickstart", ["environment={kind: class, max_turns: 9}"]).environment
    assert (added.name, added.max_turns) == ("calculator", 9)
    score = "+reward={kind: remote, url: 'http://127.0.0.1:1/'}"
    assert compose("quickstart", [score, "reward.environment_weight=0.5"]).reward.environment_weight == 0.5


def test_yaml_knows_exponents_without_a_point(write):
    path = write("mine.yaml", "defaults: [quickstart, _self_]\nlearner: {lr: 1e-4}\n")
    assert compose(path).learner.lr == 1e-4


def test_a_recipe_elsewhere_extends_a_shipped_one(write):
    path = write("deep/mine.yaml", "defaults:\n  - quickstart\n  - _self_\nname: mine\nbatch: {group_size: 4}\n")
    recipe, quickstart = compose(path), compose("quickstart")
    assert (recipe.name, recipe.batch.group_size) == ("mine", 4)
    assert recipe.batch.groups_per_step == quickstart.batch.groups_per_step
    assert recipe.model == quickstart.model


def test_config_groups_shipped_and_of_one_s_own(write):
    assert compose("quickstart", ["+pace=synchronous"]).buffer.max_staleness == 0
    write("learner/slow.yaml", "lr: 1e-7\n")
    write("learner/fast.yaml", "lr: 1e-3\n")
    path = write("mine.yaml", "defaults: [quickstart, learner: slow, _self_]\n")
    assert compose(path).learner.lr == 1e-7
    assert compose(path, ["learner=fast"]).learner.lr == 1e-3
    assert compose(path, ["+pace=synchronous"]).buffer.largest_depth == 0
    assert "fast, slow" in refused(path, "learner=fats").remedy


def test_an_unknown_key_reaches_the_schema():
    error = refused("quickstart", "learner.lrr=1")
    assert error.place == "learner.lrr"
    assert "did you mean `learner.lr`?" in error.remedy


def test_a_missing_recipe_names_the_shipped_ones():
    for name in ("quickstrat", "nowhere/quickstrat.yaml"):
        error = refused(name)
        assert "did you mean `quickstart`?" in error.remedy
        assert "one of the shipped recipes: " in error.remedy
        assert "quickstart" in error.remedy.partition("shipped recipes: ")[2]
    assert ".yaml" in refused("mine.yml").remedy


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("name: x\nsteps: [1\nseed: 3\n", "line 3, column 5"),
        ("name: x\nname: y\n", "duplicate key name"),
        ("model:\n\tpath: tiny\n", "line 2, column 1"),
    ],
)
def test_a_syntax_error_names_file_and_line(write, text, where):
    error = refused(write("mine.yaml", text))
    assert "mine.yaml, line" in error.problem
    assert where in error.problem


def test_a_syntax_error_in_an_extended_recipe_names_that_file(write):
    write("base.yaml", "name: [\n")
    assert "base.yaml, line" in refused(write("mine.yaml", "defaults: [base, _self_]\n")).problem


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("defaults: [quickstrat, _self_]\n", "'quickstrat'"),
        ("defaults: [quickstart]\nname: mine\n", "end the list with _self_"),
        ("defaults: [mine, _self_]\n", "leads back"),
        ("defaults: [quickstart, _self_]\nname: ${nothing}\n", "name: a `${...}` in mine.yaml or an override cannot be replaced"),
        (
            "defaults: [quickstart, _self_]\nname: ${nothing}\n",
            "'nothing' not found; name a key that the recipe sets, or `oc.env:VARIABLE`",
        ),
        ("defaults: [quickstart, _self_]\nname: ${oc.env:NOTHING}\n", "'NOTHING' not found"),
        ("defaults: [quickstart, _self_]\nname: a ${b\n", r"for a literal `${` write `\${`"),
        ("defaults: [quickstart, _self_]\ntracking:\n  experiment: ???\n", "tracking.experiment"),
        ("- a\n- b\n", "cannot compose"),
    ],
)
def test_what_hydra_refuses_is_a_recipe_error(write, text, told):
    assert told in str(refused(write("mine.yaml", text)))


@pytest.mark.parametrize("written", [r"a \${b}", r"'a \${b}'", r'"a \\${b}"'])
def test_a_literal_is_written_as_the_refusal_says(write, written):
    assert (
        compose(write("mine.yaml", f"defaults: [quickstart, _self_]\ntracking:\n  experiment: {written}\n")).tracking.experiment
        == "a ${b}"
    )


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in refused(str(path)).remedy


@pytest.mark.parametrize("override", ["learner.lr", "learner.lr=[1", "a b", "b", "run_dir='/a b"])
def test_an_unreadable_override_is_named(override):
    error = refused("quickstart", override)
    assert repr(override) in error.problem
    assert "a value with spaces in quotes" in error.remedy


def test_a_chat_template_is_read_where_it_is_named_and_kept_as_text(write, tmp_path):
    text = "{% for m in messages %}\n'${m}' \\ \"<|im_end|>\" é{% endfor %} <tool_call>\n"
    write("mine.jinja", text)
    recipe = compose("quickstart", ["model.path=m", f"model.chat_template={tmp_path}/mine.jinja"])
    assert (recipe.model.chat_template, recipe.model.tool_parser) == (text, "hermes")
    assert compose(write("again.yaml", resolved_yaml(recipe))) == recipe, (
        "a resume has the template, whatever the file holds by then"
    )
    assert refused("quickstart", "model.chat_template=nowhere.jinja").place == "model.chat_template"


def test_a_sweep_is_refused():
    error = refused("quickstart", "learner.lr=1e-4,1e-5")
    assert error.place == "learner.lr"
    assert "asyncrl sweep" in error.remedy


@pytest.mark.parametrize(
    ("written", "read"), [("010", "8"), ("-0_17", "-15"), ("1:30", "90"), ("1_0:00:00", "36000"), ("0:30.5", "30.5")]
)
def test_a_number_that_yaml_takes_for_another_is_refused_wherever_it_stands(write, written, read):
    write("base.yaml", f"defaults: [quickstart, _self_]\nenvironment:\n  options: {{limits: [1, {written}]}}\n")
    error = refused(write("mine.yaml", "defaults: [base, _self_]\n"))
    assert f"base.yaml, line 3, column 25: YAML takes {written} for the number {read}" in error.problem


@pytest.mark.parametrize("written", ["'010'", "!!str 1:30", "0", "00", "007", "0x10", "1_000", "a:1:30", "2026-01-01"])
def test_what_yaml_reads_as_a_person_does_is_taken(write, written):
    compose(write("mine.yaml", f"defaults: [quickstart, _self_]\nenvironment:\n  options: {{limit: {written}}}\n"))


@pytest.mark.parametrize("named", ["base", "base.yaml"])
def test_a_config_may_be_extended_with_its_ending(write, named):
    write("base.yaml", "defaults: [quickstart, _self_]\nsteps: 7\n")
    assert compose(write("mine.yaml", f"defaults: [{named}, _self_]\n")).steps == 7


def test_the_folder_of_a_run_is_no_recipe_and_the_one_in_it_is(write, tmp_path):
    inside = write("runs/mine/recipe.yaml", "defaults: [quickstart, _self_]\nsteps: 7\n")
    error = refused(str(tmp_path / "runs" / "mine"))
    assert f"--resume {tmp_path / 'runs' / 'mine'}, or begin anew with {inside}" in error.remedy
    assert compose(inside).steps == 7

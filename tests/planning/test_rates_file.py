"""Files of rates: what is shipped can be read, and what is wrong is named."""

from pathlib import Path

import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.planning.rate_sources import basis_of_file, machine_of
from asyncrl.planning.rates_file import SHIPPED, read_rates
from asyncrl.run.recipe.compose import compose, compose_for

FIGURES = "{value: 0.1, source: given}"
DIRECT = f"""\
device: made
engine: {{step: {FIGURES}, request: {FIGURES}, prompt_token: {FIGURES}}}
learner: {{step: {FIGURES}, token: {FIGURES}}}
publication: {{write: {FIGURES}, move: {FIGURES}, pause: {FIGURES}}}
"""


@pytest.mark.parametrize("name", [path.stem for path in SHIPPED.glob("*.yaml")])
def test_shipped_files_name_a_source_for_each_figure(name: str):
    file = read_rates(name)
    recipe = compose_for(machine_of(file, 8), "quickstart", ["generators.count=4", "learner.data_parallel=2"])[0]
    basis = basis_of_file(file, name, None)
    rates = dict(basis.rates_of(recipe).listed())
    assert rates["engine.step"].value > 0
    assert all(rate.source for rate in rates.values())


def test_rates_may_be_written_themselves(tmp_path: Path):
    (tmp_path / "own.yaml").write_text(DIRECT)
    file = read_rates(str(tmp_path / "own.yaml"))
    assert file.engine is not None
    assert file.engine.step.value == 0.1
    with pytest.raises(RecipeError, match="no episodes"):
        basis_of_file(file, "own", None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("device: [", "no file of rates"),
        ("device: made", "either hardware, or all of engine"),
        (DIRECT + "speed: 3", "unknown field `speed`"),
        (DIRECT.replace("value: 0.1", "value: -1", 1), "step of .* is -1"),
        (DIRECT.replace(", source: given", "", 1), "missing required field `source`"),
        (DIRECT + "gpus_a_node: 0", "gpus_a_node of .* is 0"),
        (DIRECT + "cores: -3", "cores of .* is -3"),
        (DIRECT + "about: 2026-13-45", "no file of rates: month must be in"),
        (DIRECT + "about: " + 3000 * "[" + 3000 * "]", "no file of rates: .*recursion"),
        (DIRECT + "device: other", "no file of rates: 'device' is given twice"),
        (DIRECT.replace(FIGURES, "{value: 0.1, value: 0.2, source: given}", 1), "no file of rates: 'value' is given twice"),
        (DIRECT.replace("0.1", "0", 2), "step and request of engine in .* are both 0"),
        (DIRECT.replace("source: given", "source: given, error: .nan", 1), "error of step of .* is nan"),
        (DIRECT.replace("source: given", "source: given, error: -5", 1), "error of step of .* is -5"),
        (DIRECT.replace("source: given", "source: given, measured: [5, 1]", 1), r"measured of step of .* is \[5, 1\]"),
        (DIRECT.replace("learner: {", "learner: {ranks: {value: 0, source: given}, "), "ranks of .* is 0"),
        (
            DIRECT + f"episodes: {{prompt: {FIGURES}, sampled: {FIGURES}, spread: {{value: 800, source: x}}}}",
            "spread of .* is 800",
        ),
        (
            DIRECT + f"episodes: {{prompt: {FIGURES}, sampled: {FIGURES}, turns: {{value: 1e9, source: x}}}}",
            "turns of .* is 1e.09",
        ),
        (DIRECT.replace("engine: {", "engine: {step_tokens: {value: 0, source: given}, "), "step_tokens of .* is 0"),
        (DIRECT + "failures: {broken: {value: 1, source: given}}", "broken of .* is 1"),
        (DIRECT + f"episodes: {{prompt: {FIGURES}, sampled: {{value: .nan, source: given}}}}", "sampled of .* is nan"),
        (
            DIRECT + f"episodes: {{prompt: {FIGURES}, sampled: {FIGURES}, of_task: {{value: 2, source: given}}}}",
            "of_task of .* is 2",
        ),
        ((SHIPPED / "h100.yaml").read_text().replace("value: 989e12", "value: 0"), "peak_flops of .* is 0"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, problem: str):
    file = tmp_path / "own.yaml"
    file.write_text(text)
    with pytest.raises(RecipeError, match=problem):
        read_rates(str(file))


def test_a_file_that_is_not_there_names_the_shipped_ones():
    with pytest.raises(RecipeError, match="h100"):
        read_rates("h200")


@pytest.mark.parametrize(("ranks", "cores"), [(2, 4.0), (4, 8.0)])
def test_cores_and_weight_of_a_file_are_taken_as_they_stand(tmp_path: Path, ranks: int, cores: float):
    text = DIRECT.replace("learner: {", "learner: {cores: {value: 4, source: given}, ranks: {value: 2, source: given}, ")
    text += "machine: {cores: {value: 16, source: given}, weight: {value: 3, source: given}}\n"
    (tmp_path / "own.yaml").write_text(text + f"episodes: {{prompt: {FIGURES}, sampled: {FIGURES}}}")
    basis = basis_of_file(read_rates(str(tmp_path / "own.yaml")), "own", None)
    rates = basis.rates_of(compose("quickstart", [f"learner.data_parallel={ranks}"]))
    assert (rates.learner.cores.value, rates.machine.weight.value) == (cores, 3.0)

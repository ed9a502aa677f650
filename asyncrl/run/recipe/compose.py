"""Makes a typed recipe from a name or path and overrides. Hydra composes it, and asyncrl/core/recipe checks it.

A recipe may live anywhere. Its defaults list finds configs beside it first and the shipped ones after that, and every
key of the schema can be set on the command line whether or not the YAML mentions it. Every problem is raised as a
``RecipeError``, never as Hydra's own. What :mod:`asyncrl.run.folder.config_yaml` writes, :func:`compose` reads back to an equal
recipe, whatever its texts hold.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType, Quote, QuotedString
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError, InterpolationResolutionError, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from asyncrl import recipes as shipped
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.decode import decode_recipe, kind_at, kind_of
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.models.model_sources import with_pinned_models
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.recipe.automatic import Choice, choose

SHIPPED_FOLDER = Path(shipped.__file__).resolve().parent
_NOT_A_HYDRA_APPLICATION = "take it out: Hydra only composes the recipe; run folders, with their logs, are made in run_dir"


def compose(recipe: str, overrides: Sequence[str] = ()) -> Recipe:
    """Compose the recipe at a path, or the shipped recipe of that name; choose its ``auto`` values for this machine.

    Args and errors: see :func:`compose_for`.
    """
    return compose_for(Machine.here(), recipe, overrides)[0]


def compose_for(
    machine: Machine, recipe: str, overrides: Sequence[str] = (), model_path: str | None = None
) -> tuple[Recipe, tuple[Choice, ...]]:
    """Compose the recipe at a path, or the shipped recipe of that name, for a machine; also return what was chosen.

    Args:
        machine: the machine that the run will use; decides about the keys that are ``auto``.
        recipe: path of a ``.yaml`` file, or a name that :func:`shipped_recipes` lists.
        overrides: in Hydra's grammar. ``learner.lr=1e-4`` sets a key (in the YAML or not), ``~tracking.uri`` takes one out,
            ``group=option`` chooses from a config group. A section of another kind than the recipe's takes its place; one of the
            same kind is added to it.
        model_path: takes the place of the recipe's ``model.path``.

    Raises:
        RecipeError: the recipe is not valid; further problems are in the error's notes.
    """
    path = locate(recipe)
    with composing(path):
        settable = _replacing(path.stem, [_settable(override) for override in overrides])
        config = hydra.compose(path.stem, overrides=settable)
        _check_configs(path.stem, settable)
        _refuse_missing_values(OmegaConf.to_container(config))
        mapping = OmegaConf.to_container(config, resolve=True)
        _refuse_missing_values(mapping)  # an interpolation may give one, e.g. of an environment variable
    assert isinstance(mapping, dict)
    if model_path is not None and isinstance(mapping.setdefault("model", {}), dict):
        mapping["model"]["path"] = model_path
    choices: tuple[Choice, ...] = ()

    def chosen(undecided: Recipe, automatic: Set[str]) -> Recipe:
        nonlocal choices
        decided, choices = choose(with_pinned_models(undecided), automatic, machine)
        return decided

    return decode_recipe({str(key): value for key, value in mapping.items()}, chosen), choices


def quoted(text: str) -> str:
    """Write a text, such as a path, as the value of an override, which means it whatever it holds."""
    return QuotedString(text.replace("${", r"\${"), Quote.single).with_quotes()


def shipped_recipes() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(path.stem for path in SHIPPED_FOLDER.glob("*.yaml"))


class ShippedConfigs(SearchPathPlugin):
    """Lets defaults lists find the shipped recipes and config groups, after those beside the recipe itself."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the shipped folder."""
        search_path.append("asyncrl", f"file://{SHIPPED_FOLDER}")


@contextmanager
def composing(path: Path) -> Iterator[None]:
    """Have Hydra look for configs beside the recipe at ``path``, and raise what it finds wrong as recipe errors."""
    with hydra.initialize_config_dir(str(path.parent), job_name="asyncrl", version_base="1.3"), _translated_errors(path):
        yield


def locate(recipe: str) -> Path:
    """Find the file of the recipe at a path, or of the shipped recipe of that name.

    Raises:
        RecipeError: there is none.
    """
    path = Path(recipe)
    if path.suffix in (".yaml", ".yml") or len(path.parts) != 1:
        if (path / "recipe.yaml").is_file():
            remedy = f"go on with it by --resume {recipe}, or begin anew with {path / 'recipe.yaml'}"
            raise RecipeError("", f"{recipe!r} is the folder of a run", remedy)
        if path.suffix != ".yaml":
            raise RecipeError("", f"recipe {recipe!r} is not a .yaml file", "give the path of a file whose name ends in .yaml")
        if not path.is_file():
            raise RecipeError("", f"there is no recipe file {recipe!r}", _names_instead(path.stem))
        return path.resolve()
    if recipe not in shipped_recipes():
        raise RecipeError("", f"no recipe named {recipe!r} is shipped", _names_instead(recipe))
    return SHIPPED_FOLDER / f"{recipe}.yaml"


def _names_instead(name: str) -> str:
    names = shipped_recipes()
    near = get_close_matches(name, names, n=1)
    guess = f"did you mean `{near[0]}`? " if near else ""
    return f"{guess}give a path to a .yaml file, or one of the shipped recipes: {', '.join(names)}"


def _settable(override: str) -> str:
    """Turn ``key=value`` into ``++key=value``: the key need not be in the YAML; the schema refuses an unknown one."""
    (parsed,) = OverridesParser.create().parse_overrides([override])
    if parsed.is_sweep_override():
        raise RecipeError(
            parsed.key_or_group,
            f"{parsed.input_line!r} asks for a sweep over several values",
            "use `asyncrl sweep`, which runs each of them; if the comma is part of the value, put it in quotes",
        )
    if re.split("[./]", parsed.key_or_group)[0] == "hydra":
        raise RecipeError(parsed.key_or_group, f"{parsed.input_line!r} is a setting of Hydra itself", _NOT_A_HYDRA_APPLICATION)
    is_plain = parsed.type is OverrideType.CHANGE
    return f"++{override}" if is_plain and not group_options(parsed.key_or_group) else override


def _replacing(name: str, overrides: list[str]) -> list[str]:
    """Have each override that gives a section of another ``kind`` than the recipe's take its place.

    Hydra would add one to the other, and the keys of the kind before mean nothing to the new one, or something else. What the
    recipe has there is taken out before all overrides, so that keys of the new section are set wherever they stand. If several
    overrides give the section, those of another kind than the last one's do nothing.
    """
    given = {override: found for override in overrides if (found := _section_with_kind(override)) is not None}
    if not given:
        return overrides
    before = OmegaConf.to_container(hydra.compose(name, overrides=[each for each in overrides if not _adds_key(each)]))
    assert isinstance(before, dict)
    mapping, last = {str(key): value for key, value in before.items()}, dict(given.values())
    taken_out = [f"~{key}" for key, kind in last.items() if kind_at(mapping, key) not in (None, kind)]
    return [*taken_out, *(each for each in overrides if each not in given or given[each][1] == last[given[each][0]])]


def _adds_key(override: str) -> bool:
    """Whether an override gives a key a value, and neither takes one out nor chooses from a config group."""
    (parsed,) = OverridesParser.create().parse_overrides([override])
    return (parsed.is_add() or parsed.is_force_add()) and not group_options(parsed.key_or_group)


def _section_with_kind(override: str) -> tuple[str, str] | None:
    """Return key and kind of an override that gives a section with its kind; None for any other."""
    (parsed,) = OverridesParser.create().parse_overrides([override])
    kind = kind_of(parsed.value()) if _adds_key(override) else None
    return None if kind is None else (parsed.key_or_group, kind)


def group_options(group: str) -> list[str]:
    """The options of a config group; none if there is no such group."""
    found = GlobalHydra.instance().config_loader().get_group_options(group)
    return [option for option in found if not option.startswith("_")]  # Hydra's own begin so


def _check_configs(name: str, overrides: list[str]) -> None:
    """Refuse what Hydra would silently read as something else, in the recipe and in each config that it extends.

    A section ``hydra`` would be accepted and do nothing, because Hydra removes it before the schema sees it.
    """
    loader = GlobalHydra.instance().config_loader()
    for config in loader.compute_defaults_list(name, overrides, RunMode.RUN).defaults:
        if config.config_path is None or (config.package or "").partition(".")[0] == "hydra":
            continue
        source = next((each for each in loader.get_sources() if each.is_config(config.config_path)), None)
        if source is None:
            continue
        file = f"{config.config_path.removesuffix('.yaml')}.yaml"  # a defaults list may name it either way
        refuse_misread_numbers(Path(source.path) / file)
        if config.package in ("", None) and "hydra" in source.load_config(config.config_path).config:
            problem = f"{file} has a section of settings for Hydra itself"
            raise RecipeError("hydra", problem, _NOT_A_HYDRA_APPLICATION)


def _refuse_missing_values(value: Any, place: str = "") -> None:
    if value == "???":
        raise RecipeError(
            place, "its value is ???, which means that it has yet to be filled in", f"set it, e.g. with {place}=VALUE"
        )
    if isinstance(value, Mapping):
        for key, entry in value.items():
            _refuse_missing_values(entry, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            _refuse_missing_values(entry, f"{place}[{index}]")


@contextmanager
def _translated_errors(path: Path) -> Iterator[None]:
    """Turn what Hydra, OmegaConf and the YAML reader raise into recipe errors that name the file. Needs Hydra initialised."""
    try:
        with warnings.catch_warnings():
            # Hydra only warns, and lets the extended recipe overwrite the recipe that extends it.
            warnings.filterwarnings("error", message=".*missing `_self_`", category=UserWarning)
            yield
    except UserWarning as error:
        raise RecipeError(
            "defaults",
            f"the list in {path.name} does not say whether the file itself comes before or after what it extends",
            "end the list with _self_, so that the file has the last word",
        ) from error
    except RecursionError as error:
        raise RecipeError(
            "defaults",
            f"the list in {path.name} leads back to itself, or a value is nested too deeply",
            "a recipe cannot extend a recipe of its own file name: rename the file; or nest fewer brackets",
        ) from error
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(path)
        raise RecipeError("", f"{where}: {error.problem}", "correct the YAML there") from error
    except (YAMLError, UnicodeDecodeError) as error:
        raise RecipeError("", f"{path.name} is not YAML: {_one_line(error)}", "save it as UTF-8 text") from error
    except MissingConfigException as error:
        missing = error.missing_cfg_file or "?"
        raise RecipeError(
            "defaults",
            f"{path.name} asks for {missing!r}, found neither beside it nor among the shipped configs",
            f"there are: {', '.join(group_options(missing.rpartition('/')[0])) or 'none in that group'}",
        ) from error
    except OverrideParseException as error:
        raise RecipeError(
            "",
            f"cannot read the override {error.override!r}: {_one_line(error)}",
            "write key=value, or ~key to take a key out; put a value with spaces in quotes, and for the shell the override too",
        ) from error
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ if not str(error) and isinstance(error.__cause__, Exception) else error
        if isinstance(cause, InterpolationResolutionError | GrammarParseError):
            problem = f"a `${{...}}` in {path.name} or an override cannot be replaced: {str(cause).partition(chr(10))[0]}"
            there = "name a key that the recipe sets, or `oc.env:VARIABLE` of one that is set"
            remedy = rf"{there}; for a literal `${{` write `\${{`, or `\\${{` between double quotes"
            raise RecipeError(str(cause.full_key or ""), problem, remedy) from error
        raise RecipeError("", f"cannot compose {path.name}: {_one_line(cause)}", "correct the recipe or the override") from error
    except ValueError as error:
        remedy = "correct the recipe or the override; a defaults list looks like [quickstart, _self_]"
        raise RecipeError("", f"cannot compose {path.name}: {_one_line(error)}", remedy) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


Plugins.instance().register(ShippedConfigs)


_OCTAL = r"[-+]?0[0_]*[1-7]_*[0-7][0-7_]*"
_BASE_60 = r"[-+]?([1-9][0-9_]*(:[0-5]?[0-9])+|[0-9][0-9_]*(:[0-5]?[0-9])+\.[0-9_]*)"
_MISREAD = re.compile(f"{_OCTAL}|{_BASE_60}")


def refuse_misread_numbers(file: Path) -> None:
    """Refuse ``010``, which YAML takes for 8, and ``1:30``, which it takes for 90. The file must be valid YAML.

    Raises:
        RecipeError: it has such a number, without quotes.
    """
    for event in yaml.parse(file.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        plain = isinstance(event, yaml.ScalarEvent) and event.implicit[0] and not event.style
        if plain and _MISREAD.fullmatch(event.value):
            where = f"{file}, line {event.start_mark.line + 1}, column {event.start_mark.column + 1}"
            problem = f"{where}: YAML takes {event.value} for the number {yaml.safe_load(event.value)}"
            raise RecipeError(
                "", problem, "write that number if it is meant, without 0 before it or colons; quote it if it is a text"
            )

"""Finds the lessons of a recipe's environment. Those of built-in environments are imported for it."""

import sys
from collections.abc import Callable
from hashlib import blake2b
from importlib import import_module
from pathlib import Path

from asyncrl.core.plug_ins.plug_in import users_code
from asyncrl.core.recipe.environment import ClassEnvironmentConfig, MemberConfig
from asyncrl.envs.base import Environment
from asyncrl.envs.lessons.base import REGISTERED, Lessons
from asyncrl.envs.load import BUILT_IN, ClassMember, load_member


def find_lessons(spec: MemberConfig) -> Lessons | None:
    """Return what the tiny model can be warmed up on; None if there are no lessons for these options.

    Raises:
        RecipeError: the environment or its options are wrong, or its lessons raise something.
    """
    member = load_member(spec)
    return _lessons_of(member) if isinstance(member, ClassMember) else None


def lessons_digest(spec: ClassEnvironmentConfig) -> str:
    """Return a digest of what demonstrations depend on beside options: the code of environment and lessons, and what these read.

    Raises:
        RecipeError: as :func:`find_lessons`.
    """
    member = ClassMember(spec, "environment")
    lessons = _lessons_of(member)
    digest = blake2b(b"" if lessons is None else lessons.digest().encode(), digest_size=16)
    modules = {each.__module__ for each in (*member.environment.__mro__, *type(lessons).__mro__)}
    for name in sorted(modules):
        file = None if name.partition(".")[0] in sys.stdlib_module_names else sys.modules[name].__file__
        digest.update(Path(file).read_bytes() if file else b"")
    return digest.hexdigest()


def _lessons_of(member: ClassMember) -> Lessons | None:
    make = _registered(member.environment)
    if make is None:
        return None
    problem = f"the lessons of {member.name!r} raised"
    with users_code(problem, f"{member.place}.name", "fix them, or name another model than `tiny`"):
        return make(**member.options)


def _registered(environment: type[Environment]) -> Callable[..., Lessons | None] | None:
    classes = {f"{each.__module__}:{each.__qualname__}" for each in environment.__mro__}
    for name, built_in in BUILT_IN.items():
        if built_in in classes:
            import_module(f"asyncrl.envs.builtin.lessons.{name}")
    make: Callable[..., Lessons | None] | None = getattr(environment, REGISTERED, None)
    return make

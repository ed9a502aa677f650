"""Rules of ``algorithm.teacher``: teachers that cannot be asked, and keys with which they mean nothing, or something else."""

from collections.abc import Callable, Iterator

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.advantage import NoAdvantageConfig
from asyncrl.core.recipe.algorithm import KlInRewardConfig
from asyncrl.core.recipe.loss import ClipCovLossConfig, GmpoLossConfig, KlCovLossConfig
from asyncrl.core.recipe.rules.reward import slow_request, wrong_url
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.teacher import TeacherConfig
from asyncrl.core.text import exact

TEACHER = "algorithm.teacher"
_OF_ENGINES = ("engines", "dtype", "kv_cache_mb", "gpu_memory_share", "tensor_parallel", "engine", "placement")
_ALIKE = {"max_num_seqs": "max_running", "data_parallel_size": "max_running"}


def _a_teacher_is_somewhere(recipe: Recipe) -> Iterator[RecipeError]:
    teacher = recipe.algorithm.teacher
    if teacher is None:
        return
    if (teacher.path is None) == (teacher.url is None):
        problem = "names neither path nor url" if teacher.path is None else "names a path and a url"
        yield RecipeError(TEACHER, problem, "name the folder of the teacher as path, or the server that has it as url")
    for name in _ALIKE.keys() & teacher.engine:
        problem = f"engines of a teacher have the {_ALIKE[name]} of generators, and no data-parallel ranks"
        yield RecipeError(f"{TEACHER}.engine.{name}", problem, f"leave it out; {TEACHER}.engines says how many engines there are")
    if teacher.url is None:
        if teacher.token_variable is not None:
            problem = "a token is sent to a url only, and there is none"
            yield RecipeError(f"{TEACHER}.token_variable", problem, "leave it out")
        return
    yield from wrong_url(teacher.url, f"{TEACHER}.url", "http://host:port")
    for name in _OF_ENGINES:
        if getattr(teacher, name) != getattr(TeacherConfig(), name):
            problem = f"is of engines that the run starts, and {TEACHER}.url names a server that is there already"
            yield RecipeError(f"{TEACHER}.{name}", problem, f"leave it out, or name {TEACHER}.path instead")
    yield from slow_request(recipe, teacher.timeout_s, f"{TEACHER}.timeout_s")


def _probabilities_are_of_one_temperature(recipe: Recipe) -> Iterator[RecipeError]:
    if recipe.algorithm.teacher is not None and recipe.sampling.temperature != 1:
        problem = f"{exact(recipe.sampling.temperature)} is not 1, the temperature of a teacher's probabilities"
        yield RecipeError("sampling.temperature", problem, f"set it to 1, or leave {TEACHER} out")


def _a_teacher_trains_something(recipe: Recipe) -> Iterator[RecipeError]:
    algorithm = recipe.algorithm
    if algorithm.teacher is None:
        return
    if algorithm.loss.imitates:
        problem = "cross_entropy imitates every token, whatever its advantage, so a teacher would change nothing"
        yield RecipeError("algorithm.loss.kind", problem, f"take another loss, or leave {TEACHER} out")
    if isinstance(algorithm.loss, GmpoLossConfig):
        problem = "gmpo needs one advantage for a whole row, and a teacher gives each token its own"
        yield RecipeError("algorithm.loss.kind", problem, "take another loss, such as gspo or dppo")


def _something_trains(recipe: Recipe) -> Iterator[RecipeError]:
    algorithm = recipe.algorithm
    if not isinstance(algorithm.advantage, NoAdvantageConfig):
        return
    if algorithm.teacher is None and not algorithm.loss.imitates:
        problem = f"none gives every token the advantage 0, and there is no {TEACHER}, so that nothing would be trained"
        yield RecipeError("algorithm.advantage.kind", problem, "name a teacher, or take grpo or another advantage")
    if isinstance(algorithm.loss, ClipCovLossConfig | KlCovLossConfig) and algorithm.teacher is not None:
        problem = "chooses tokens by how they go with their advantages, and before a teacher adds its own these are 0"
        yield RecipeError("algorithm.loss.kind", problem, "take another loss, such as dppo, or another advantage than none")
    for place, there in (
        ("algorithm.kl.kind", isinstance(algorithm.kl, KlInRewardConfig)),
        ("algorithm.overlong", algorithm.overlong is not None),
    ):
        if there:
            problem = "it changes the reward, which trains nothing with algorithm.advantage of kind none"
            yield RecipeError(place, problem, "set it to in_loss" if place.endswith("kind") else "leave it out")


TEACHER_RULES: tuple[Callable[[Recipe], Iterator[RecipeError]], ...] = (
    _a_teacher_is_somewhere,
    _probabilities_are_of_one_temperature,
    _a_teacher_trains_something,
    _something_trains,
)

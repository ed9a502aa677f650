"""Section ``tasks`` of a recipe: where training and held-out tasks come from."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from asyncrl.core.recipe.section import Positive, Section, Text


class CurriculumConfig(Section, frozen=True):
    """A class of your own that changes the weights of the sources while training.

    Attributes:
        name: ``module:Class``; see ``asyncrl.buffers.tasks.curriculum.Curriculum`` for what it must have.
        options: keyword arguments of its constructor.
    """

    name: Text
    options: dict[str, Any] = {}


class GeneratedTasksConfig(Section, frozen=True, tag_field="kind", tag="generated"):
    """Tasks that the environment makes from a seed (its ``make_tasks``). In a mixture each member is a source of tasks.

    Attributes:
        train: how many different training tasks to make, in a mixture of each member. They are reshuffled and repeated each
            epoch; more tasks belong in files.
        evaluation: how many held-out tasks to make, in a mixture of each member; none of them is ever trained on.
        weights: how often tasks of each member of a mixture are drawn, relative to the others; 1 where nothing is said.
        too_long: ``leave_out`` tasks whose prompts leave no room for a turn in ``model.max_context``, which are counted, or
            ``refuse`` them at launch. What is found only when it is played is always left out.
        curriculum: changes the weights while training.
    """

    train: Annotated[int, Meta(ge=1, le=1_000_000)] = 20_000
    evaluation: Annotated[int, Meta(ge=1, le=1_000_000)] = 128
    weights: dict[str, Positive] = {}
    too_long: Literal["leave_out", "refuse"] = "leave_out"
    curriculum: CurriculumConfig | None = None


class TaskFileConfig(Section, frozen=True):
    """One source of tasks, whose format follows from its name and content.

    Attributes:
        path: a file of JSON lines or of one JSON array, a Parquet file, a folder that Hugging Face datasets wrote, or a data set
            of the Hugging Face hub, ``organisation/name`` or ``organisation/name@revision``; or a file or folder of an object
            store, by its address, such as ``s3://BUCKET/tasks.parquet``.
        split: which split of a data set that holds several.
        subset: which configuration of a data set of the hub that holds several.
        environment: in a mixture, the member that plays these tasks.
        weight: how often tasks are drawn from here, relative to the other sources.
        columns: which column is what. ``prompt``, ``id``, ``tools`` and ``system`` have their meaning; every other key is what
            the environment finds in ``task.data``. A dot leads into an object: ``reward_model.ground_truth``. Where nothing is
            said, the prompt is in ``prompt``, the id in ``id``, and all other columns go to the environment under their names.
        json: columns whose text is the JSON of what they hold. A prompt that looks as if it were one is refused until that is
            said; an empty list says that none is.
        reference: key of ``task.data`` that gets the text of the assistant's closing turn, which is cut off the prompt; its
            calls, if there are any, are beside it under that key and ``_calls``.
    """

    path: Text
    split: str = ""
    subset: str = ""
    environment: str = ""
    weight: Positive = 1.0
    columns: dict[Text, Text] = {}
    json: tuple[Text, ...] | None = None
    reference: Text | None = None


class FileTasksConfig(Section, frozen=True, tag_field="kind", tag="files"):
    """Tasks from files; all columns but prompt and id go to the environment.

    Attributes:
        train: sources of training tasks, mixed by weight; each is reshuffled every epoch.
        evaluation: sources of held-out tasks; their weights are not used.
        on_malformed: ``refuse`` a file with a row that is not a task, or ``skip`` such rows, counted and named in the log.
        too_long: ``leave_out`` tasks whose prompts leave no room for a turn in ``model.max_context``, which are counted, or
            ``refuse`` them at launch. What is found only when it is played is always left out.
        curriculum: changes the weights while training.
    """

    train: Annotated[tuple[TaskFileConfig, ...], Meta(min_length=1)]
    evaluation: Annotated[tuple[TaskFileConfig, ...], Meta(min_length=1)]
    on_malformed: Literal["refuse", "skip"] = "refuse"
    too_long: Literal["leave_out", "refuse"] = "leave_out"
    curriculum: CurriculumConfig | None = None

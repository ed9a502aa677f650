"""A small made corpus on people: who lives where, and who taught whom. For the tiny model, and for trying `search` out.

Every person has a teacher and lives in a town, and has one document. A checksum of the question decides on its split, so no
question is ever in both.
"""

import random
from collections.abc import Iterator, Sequence
from functools import cache

import msgspec

from asyncrl.core.ids import TaskId
from asyncrl.core.task import Task
from asyncrl.envs.builtin.corpus import Document
from asyncrl.envs.builtin.splits import split_of

_FIRST_NAMES = "Ada Ben Cleo Dan Eva Finn Gus Hal Ida Jan Kim Leo Mia Ned Ole Pia Ruth Sam Tom Uma Vera Will Yara Zoe"
_LAST_NAMES = "Abbot Berg Cole Dahl Ekman Ford Gray Hale Iversen Jonas Klein Lund Moor North Ott Park Quinn Reed Stone Tull"
_TOWNS = "Aarhus Bern Cork Delft Essen Ghent Hull Ivrea Jena Kiel Lyon Malmo Nice Oslo Porto Riga Siena Turin Ulm Vienna York"
EVALUATED = 5
"""One question in this many is for evaluation."""


class Person(msgspec.Struct, frozen=True):
    """One made person.

    Attributes:
        number: the id of the document on the person.
        teacher: name of the person's teacher.
    """

    number: int
    name: str
    town: str
    teacher: str


@cache
def people() -> dict[str, Person]:
    """All people by name, the same on each call."""
    generator, towns = random.Random("people"), _TOWNS.split()
    names = [f"{first} {last}" for first in _FIRST_NAMES.split() for last in _LAST_NAMES.split()]
    generator.shuffle(names)
    made = {}
    for number, name in enumerate(names, start=1):
        teacher = generator.choice([other for other in names if other != name])
        made[name] = Person(number, name, generator.choice(towns), teacher)
    return made


def documents() -> Iterator[Document]:
    """Yield a document on each person."""
    for person in people().values():
        text = f"{person.name} lives in {person.town} and was taught by {person.teacher}."
        yield Document(str(person.number), text, person.name)


def questions(split: str, count: int, seed: int) -> Sequence[Task]:
    """Make up to ``count`` tasks of ``split``: in turn, where somebody lives, and where somebody's teacher lives."""
    generator = random.Random(f"{split} {seed}")
    near, far = (sorted(people().values(), key=lambda person: person.number) for _ in range(2))
    generator.shuffle(near)
    generator.shuffle(far)
    made: list[Task] = []
    for person, pupil in zip(near, far, strict=True):
        towns = {
            f"Where does {person.name} live?": person.town,
            f"Where does the teacher of {pupil.name} live?": people()[pupil.teacher].town,
        }
        made += [
            Task(id=TaskId(question), prompt=question, data={"answer": town})
            for question, town in towns.items()
            if split_of(question, EVALUATED) == split
        ]
    return made[:count]

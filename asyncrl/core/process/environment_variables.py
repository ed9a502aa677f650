"""Sets variables in this process's environment for a while, for the processes that it starts meanwhile."""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager


@contextmanager
def changed_in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set ``variables``, for the processes started in this context, whether they were set before or not."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def added_to_environment(variables: Mapping[str, str]) -> AbstractContextManager[None]:
    """Set those ``variables`` that are not set yet, for the processes started in the context that is returned."""
    return changed_in_environment({name: value for name, value in variables.items() if name not in os.environ})

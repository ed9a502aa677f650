"""``asyncrl env init``: writes an environment that works, its test, and a recipe that trains on it.

What always holds: nothing that is there is overwritten, and a folder is written whole or not at all.
"""

import keyword
import re
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from asyncrl.core.errors import RecipeError

_STARTER = Path(__file__).with_name("starter")
_FILES = {"environment.py.txt": "{}.py", "test.py.txt": "test_{}.py", "recipe.yaml.txt": "{}.yaml"}


def start(folder: Path) -> tuple[Path, ...]:
    """Write the files of an environment into a new folder, whose name becomes that of module, class and run; return them.

    Raises:
        RecipeError: the name cannot be a module's or is another module's, or the folder is there already.
    """
    module = re.sub(r"[-.\s]+", "_", folder.name).lower()
    if not module.isidentifier() or not module.isascii() or keyword.iskeyword(module):
        raise RecipeError("", f"{folder.name!r} cannot be the name of a Python module", "use letters, digits and `-` or `_`")
    for name in (module, f"test_{module}"):
        if (there := find_spec(name)) is not None and there.origin is not None:
            problem = f"the environment would be a module named {name!r}, and {there.origin} is imported by that name"
            raise RecipeError("", problem, "choose another name")
    if folder.exists():
        raise RecipeError("", f"{str(folder)!r} is there already", "name a folder that is not, or remove it")
    class_name = "".join(part.capitalize() for part in module.split("_"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for template, name in _FILES.items():
            text = (_STARTER / template).read_text()
            (made / name.format(module)).write_text(text.replace("MODULE", module).replace("CLASS", class_name))
        made.chmod(0o755)
        made.rename(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return tuple(sorted(folder.iterdir()))

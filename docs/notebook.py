"""Runs the notebook's cells and keeps what they print: ``make notebook``. It takes about five minutes on two cores."""

import contextlib
import io
import json
import os
import tempfile
from pathlib import Path

NOTEBOOK = Path(__file__).resolve().parent / "asyncrl.ipynb"


def main() -> None:
    """Run all cells in an empty folder, and write the notebook with their outputs."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    namespace: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        for number, cell in enumerate(each for each in notebook["cells"] if each["cell_type"] == "code"):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("".join(cell["source"]), f"<cell {number}>", "exec"), namespace)
            text = printed.getvalue().replace(f"{os.path.realpath(scratch)}/", "").splitlines(keepends=True)
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
            cell["execution_count"] = number + 1
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

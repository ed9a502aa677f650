"""Runs the notebook in a Jupyter kernel and keeps what its cells show: ``make notebook``, about five minutes on two cores."""

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parent / "asyncrl.ipynb"


def main() -> None:
    """Run all cells in an empty folder, and write the notebook with their outputs."""
    # As in an environment that is active: what a run tells to call is told without a path of this machine.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm misses widgets, and names a path of this machine
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as scratch:
        run_cells(notebook, scratch)
    nbformat.write(notebook, NOTEBOOK)


def run_cells(notebook: nbformat.NotebookNode, folder: str) -> None:
    """Run all cells in a kernel that works in ``folder``. What they print, without this path, becomes their outputs."""
    kernel = notebook.metadata.kernelspec
    NotebookClient(notebook, timeout=None, coalesce_streams=True, record_timing=False).execute(cwd=folder)
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel, "language_info": {"name": "python"}})
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if "text" in output:
                output["text"] = output["text"].replace(f"{os.path.realpath(folder)}/", "")


if __name__ == "__main__":
    main()

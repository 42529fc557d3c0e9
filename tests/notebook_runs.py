"""Runs the notebooks of examples/notebooks from top to bottom, as *Run All* in Jupyter does."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

NEEDED = "notebooks need pip install -e '.[notebooks,dev]'"
nbclient = pytest.importorskip("nbclient", reason=NEEDED)
nbformat = pytest.importorskip("nbformat", reason=NEEDED)
for package in ("ipykernel", "matplotlib"):
    pytest.importorskip(package, reason=NEEDED)

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"


def run_notebook(name: str, folder: Path, **values: int) -> Any:
    """Return the notebook with new outputs. A cell that raises an exception is an exception here.

    Args:
        name: Its file in examples/notebooks.
        folder: The folder that it runs in.
        values: Other values of the variables in its first code cell.
    """
    notebook = nbformat.read(FOLDER / name, as_version=4)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    for variable, value in values.items():
        first.source, count = re.subn(rf"^{variable} = \d+$", f"{variable} = {value}", first.source, flags=re.MULTILINE)
        assert count == 1, f"{variable} is not in the first code cell of {name}"
    client = nbclient.NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(folder)}})
    return client.execute(env={**os.environ, "IPYTHONDIR": str(folder / ".ipython")})


def printed(notebook: Any) -> list[str]:
    """Return what each code cell printed."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in cells]

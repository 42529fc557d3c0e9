"""The notebooks run from top to bottom, and are stored with the outputs of such a run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from notebook_runs import FOLDER, nbformat, printed, run_notebook

NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_outputs_of_a_complete_run_are_stored(name: str) -> None:
    text = (FOLDER / name).read_text()
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "not a run from top to bottom"
    for cell in cells:
        assert not [output for output in cell.outputs if output.output_type == "error"], cell.source
        if re.search(r"\bprint\(|\bplt\.show\(", cell.source):
            assert cell.outputs, f"no output: {cell.source}"
    assert len(text) < 300_000
    assert not re.search(r"(?<![\w.])/(?:home|root|tmp|work|usr|Users)/", text), "a path of one machine"


def test_the_tour_prints_what_is_stored(tmp_path: Path) -> None:
    stored = nbformat.read(FOLDER / "tour_of_environments.ipynb", as_version=4)
    assert printed(run_notebook("tour_of_environments.ipynb", tmp_path)) == printed(stored)


@pytest.mark.long
def test_a_run_is_trained_and_analysed(tmp_path: Path) -> None:
    shown = printed(run_notebook("analyse_a_run.ipynb", tmp_path, SFT_STEPS=20, STEPS=2))
    assert "difference" in shown[-1]

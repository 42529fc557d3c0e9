"""What a run has besides episodes, for the page: rows of metrics, tables of evaluations, and its manifest."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rllm_gym.commands.view.run_files import FileLine, Run

_RESULTS_BYTES = 16 << 20
_MANIFEST_BYTES = 1 << 20


def metric_rows(lines: Sequence[FileLine]) -> tuple[list[dict[str, float]], list[int]]:
    """Return the finite numbers of each row with its step, and the numbers of lines without a step."""
    rows, bad = [], []
    for line in lines:
        try:
            row = json.loads(line.content or b"")
            numbers = {
                name: float(value)
                for name, value in row.items()
                if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            }
            numbers["step"]
        except (ValueError, AttributeError, KeyError, OverflowError, RecursionError):
            bad.append(line.number)
        else:
            rows.append(numbers)
    return rows, bad


def results_of(run: Run) -> dict[str, Any] | None:
    """Return the tables of the results of ``rllm-gym eval`` and of the demo in the folder of a run."""
    readers = {run.results: _eval_tables, run.evaluation: _demo_table}
    found: dict[str, Any] = {"run": run.name, "tables": [], "notices": [], "complete": True, "error": None}
    for path, tables in readers.items():
        if path is None:
            continue
        try:
            with path.open("rb") as file:
                tables(json.loads(file.read(_RESULTS_BYTES)), found)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            found["error"] = f"{path.name} cannot be read: {type(error).__name__}: {error}"[:500]
    return found if found["tables"] or found["error"] else None


def manifest_of(run: Run) -> dict[str, str] | None:
    """Return the manifest of a run as text."""
    if run.manifest is None:
        return None
    try:
        with run.manifest.open("rb") as file:
            text = json.dumps(json.loads(file.read(_MANIFEST_BYTES)), ensure_ascii=False, indent=1)
    except (OSError, ValueError, RecursionError) as error:
        text = f"{run.manifest.name} cannot be read: {type(error).__name__}: {error}"[:500]
    return {"run": run.name, "text": text}


# Private functions


def _eval_tables(report: Any, found: dict[str, Any]) -> None:
    from rllm_gym.commands.eval_results import comparison_rows, result_rows  # needs rich

    results, comparisons = report["results"], report["comparisons"]
    files = [Path(str(result["output"])).name for result in results]
    for rows, names in ((result_rows(results), files), (comparison_rows(comparisons), [])):
        if rows:
            found["tables"].append(_table("", list(rows[0]), [list(row.values()) for row in rows], names))
    found["notices"] = list(dict.fromkeys(f"{result['env']}: {result['contamination']}" for result in results))
    found["complete"] = report["complete"] is True


def _demo_table(report: Any, found: dict[str, Any]) -> None:
    rows = report["rows"]
    names = list(dict.fromkeys(str(name) for row in rows for name in row["measures"]))
    cells = [[str(row["name"]), *(_measure(row["measures"].get(name)) for name in names)] for row in rows]
    if rows:
        found["tables"].append(_table(str(report.get("title", "")), ["", *names], cells, []))


def _table(title: str, columns: list[str], rows: list[list[str]], files: list[str]) -> dict[str, Any]:
    return {"title": title, "columns": columns, "rows": rows, "files": files}


def _measure(measure: Any) -> str:
    if not isinstance(measure, dict):
        return "–" if measure is None else f"{measure:.3f}"
    interval = "" if measure.get("low") is None else f" [{measure['low']:.3f}, {measure['high']:.3f}]"
    return f"{measure['value']:.3f}{interval}"

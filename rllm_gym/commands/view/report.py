"""``rllm-gym report``: the page of ``rllm-gym view`` as one HTML file, with data of the runs in it.

The data are gzipped and in base64, so that no text of an episode is part of the HTML. ``page/report.js`` answers the
page's requests from them.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import html
import json
import math
import re
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from rllm_gym.commands.errors import CommandError
from rllm_gym.commands.terminal import visible
from rllm_gym.commands.view.episode_index import ROW, EpisodeIndex
from rllm_gym.commands.view.run_files import Cursor, Run, episode_files, lines_at, new_lines, open_runs
from rllm_gym.commands.view.run_tables import manifest_of, metric_rows, results_of
from rllm_gym.commands.view.token_text import TokenTexts

_EXAMPLES = """examples:
  rllm-gym report runs/train                         # writes runs/train/report.html
  rllm-gym report before.jsonl after.jsonl -o change.html --max-mb 5
"""
_ROW_BYTES = 100  # of an episode in the list: as many episodes are looked at as could fit
_MAX_STEPS = 20_000
_METRICS_BYTES = 4 << 20
_MOST_POINTS = 1_000
_IMPORT = re.compile(r'^import \{ (.+) \} from "\./(.+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const) (\w+))", re.MULTILINE)
_LINKS = ('<link rel="stylesheet" href="/view.css">\n', '<script type="module" src="/app.js"></script>\n')


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="rllm-gym report",
        description="Write the page of `rllm-gym view` as one HTML file that opens without a server: curves,\n"
        "episodes, transcripts, comparisons. It loads nothing, and says what was left out because of --max-mb.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", metavar="RUN", type=Path, nargs="+", help="output folder of a run, or a file of episodes (.jsonl)"
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="HTML file to write (default: report.html in the folder of the first run)"
    )
    parser.add_argument(
        "--max-mb", type=float, default=20.0, metavar="N", help="most MB of data, before compression (default: 20)"
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FOLDER",
        help="folder with a tokenizer.json, for all runs (default: the run's)",
    )
    options = parser.parse_args(argv)
    if not 0.1 <= options.max_mb <= 500:
        raise CommandError(f"--max-mb {options.max_mb:g} must be from 0.1 to 500")
    first = options.runs[0]
    output = options.output or (first if first.is_dir() else first.parent) / "report.html"
    write_report(options.runs, output, max_bytes=int(options.max_mb * 1e6), tokenizer=options.tokenizer)
    print(output)
    return 0


def write_report(
    runs: Sequence[Path], output: Path, *, max_bytes: int = 20_000_000, tokenizer: Path | None = None
) -> None:
    """Write the report of some runs.

    Args:
        runs: Output folders of runs, or files of episodes.
        output: The HTML file; its folder is created.
        max_bytes: Most bytes of data before they are compressed. The file can be larger by a third.
        tokenizer: The folder of a tokenizer for all runs; by default those of the runs' models.

    Raises:
        rllm_gym.commands.errors.CommandError: A path has no output of a run.
        OSError: The file cannot be written.
    """
    opened = open_runs(runs)
    with tempfile.TemporaryDirectory() as folder, EpisodeIndex(Path(folder) / "index.sqlite", opened) as index:
        index.refresh()
        data = _data(opened, index, TokenTexts(tokenizer), max_bytes)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(_page(", ".join(run.name for run in opened), data), encoding="utf-8")


# Private functions


def _data(runs: Sequence[Run], index: EpisodeIndex, tokens: TokenTexts, max_bytes: int) -> dict[str, Any]:
    """Return the data of the page: metrics and tables use up to half of the bytes, episodes the rest."""
    left_out = []
    data: dict[str, Any] = {"metrics": {}, "results": [], "manifests": [], "columns": ROW}
    data["bad"] = index.bad_lines()[: max_bytes // 2_000]
    for run in runs:
        share = max_bytes // 8 // len(runs)
        data["metrics"][run.name], points = _metrics(run, share)
        if points < _MOST_POINTS:
            left_out.append(f"points of the curves of {run.name} beyond {points} each")
        for name, found in (("results", results_of(run)), ("manifests", manifest_of(run))):
            if found and _size(found) <= share:
                data[name].append(found)
            elif found:
                left_out.append(f"{name} of {run.name}")
    used = _size(data)
    everything = index.state()
    total = sum(file["episodes"] for run in everything["runs"].values() for file in run["files"])
    rows: list[tuple[dict[str, Any], tuple[Path, int, int]]] = []
    for row, location in index.selection(max_bytes // 2 // _ROW_BYTES):
        used += _size(list(row.values()))
        if used > max_bytes // 2:
            break
        rows.append((row, location))
    transcripts: dict[int, dict[str, Any]] = {}
    for number, (row, location) in enumerate(rows):
        shown = _transcript(index.run(row["run"]), location, tokens, max_bytes // 4)
        if shown is None:
            continue
        used += _size(shown)
        if used > max_bytes:
            break
        transcripts[number] = shown
    if len(rows) < total:
        left_out.append(f"{total - len(rows):,} of {total:,} episodes")
    if len(transcripts) < len(rows):
        left_out.append(f"the transcripts of {len(rows) - len(transcripts):,} of the {len(rows):,} episodes listed")
    files = [(run.name, file.name) for run in runs for file in episode_files(run)]
    places = {file: place for place, file in enumerate(files)}  # without those that have just been deleted

    def place(number: int) -> tuple[int, int]:
        row = rows[number][0]
        return places.get((row["run"], row["file"]), len(files)), row["line"]

    order = sorted(range(len(rows)), key=place)
    return {
        **data,
        "rows": [list(rows[number][0].values()) for number in order],
        "transcripts": [transcripts.get(number) for number in order],
        "state": _state(everything, [row for row, _ in rows]),
        "leftOut": left_out,
    }


def _transcript(run: Run, location: tuple[Path, int, int], tokens: TokenTexts, max_bytes: int) -> dict[str, Any] | None:
    """Return a transcript with its images in it; ``None`` if it is too long or cannot be read."""
    if location[2] > max_bytes:
        return None
    try:
        shown = tokens.transcript(run, lines_at([location]))
    except (ValueError, RecursionError):
        return None
    images = [f"data:{kind};base64,{base64.b64encode(content).decode()}" for kind, content in shown.images]
    return {**shown.page, "pictures": images}


def _state(everything: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the state of the viewer with the files and numbers of the episodes in the report, without local paths."""
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        counts[row["run"], row["file"]] = counts.get((row["run"], row["file"]), 0) + 1
    runs = {
        name: {
            "path": name,
            "bad": run["bad"],
            "files": [
                {**file, "episodes": counts[name, file["name"]]}
                for file in run["files"]
                if (name, file["name"]) in counts
            ],
        }
        for name, run in everything["runs"].items()
    }
    return {"version": 1, "runs": runs, "stops": everything["stops"], "indexing": False}


def _metrics(run: Run, max_bytes: int) -> tuple[dict[str, Any], int]:
    """Return a run's rows of metrics, and the largest number of points that each curve may have in them."""
    rows: dict[float, dict[str, float]] = {}
    bad: list[int] = []
    cursor = Cursor()
    while run.metrics is not None:
        lines, cursor, _ = new_lines(run.metrics, cursor, _METRICS_BYTES)
        if not lines:
            break
        found, unread = metric_rows(lines)
        rows |= {row["step"]: row for row in found}  # a resumed run repeats steps; the last row counts
        bad = (bad + unread)[:1_000]
        if len(rows) > _MAX_STEPS:
            steps = list(rows)
            rows = {step: rows[step] for step in (*steps[:-1:2], steps[-1])}
    points = _MOST_POINTS
    while _size(thinned := _thinned(rows, points)) > max_bytes:
        points //= 2
    return {"rows": thinned, "bad": bad, "cursor": "", "restarted": False, "more": False}, points


def _thinned(rows: dict[float, dict[str, float]], points: int) -> list[dict[str, float]]:
    """Return the rows with at most this many points of each metric, the last one among them."""
    of_metric: dict[str, list[float]] = {}
    for step in sorted(rows):
        for name in rows[step].keys() - {"step"}:
            of_metric.setdefault(name, []).append(step)
    kept: dict[float, dict[str, float]] = {}
    for name, steps in of_metric.items() if points else ():
        for step in {*steps[:: math.ceil(len(steps) / points)][: points - 1], steps[-1]}:
            kept.setdefault(step, {"step": step})[name] = float(f"{rows[step][name]:.6g}")
    return [kept[step] for step in sorted(kept)]


def _size(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":")))


def _page(title: str, data: dict[str, Any]) -> str:
    """Return the page with the scripts, styles and data in it; nothing else may run or be loaded."""
    script, style = _bundle(), _file("view.css")
    content = base64.b64encode(gzip.compress(json.dumps(data, separators=(",", ":"), allow_nan=False).encode(), 6))
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    parts = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n',
        f'<script id="data" type="application/octet-stream">{content.decode()}</script>\n'
        f'<script type="module">{script}</script>\n',
    )
    page = _file("index.html").replace("<title>rllm-gym view", f"<title>{html.escape(visible(title[:200]))}")
    for link, part in zip(_LINKS, parts, strict=True):
        page = page.replace(link, part)
    return page


def _bundle() -> str:
    """Return the modules of the page as one script, each a function that returns what the module exports."""
    modules: dict[str, str] = {}

    def add(name: str) -> None:
        source = _file(name)
        for _, other in _IMPORT.findall(source):
            if other not in modules:
                add(other)
        body = _EXPORT.sub("", _IMPORT.sub(r'const { \1 } = modules["\2"];', source))
        exports = ", ".join(_EXPORT.findall(source))
        modules[name] = f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();\n'

    add("app.js")
    return "const modules = {};\n" + "".join(modules.values())


def _file(name: str) -> str:
    return (resources.files(__package__) / "page" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


__all__ = ["main", "write_report"]

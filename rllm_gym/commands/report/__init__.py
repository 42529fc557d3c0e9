"""``rllm-gym report``: write one HTML page about a run's folder, readable offline and safe to open."""

from __future__ import annotations

import argparse
from pathlib import Path

from rllm_gym.commands.report.page import render_page
from rllm_gym.commands.report.run_files import read_run

_EXAMPLES = """examples:
  rllm-gym report runs/demo-0                        # writes runs/demo-0/report.html
  rllm-gym report runs/my-run -o my-run.html --transcripts 40
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="rllm-gym report",
        description="Write a self-contained HTML report of a run: curves, before/after table, transcripts, manifest.\n"
        "The page loads no external resources.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN_DIR", type=Path, help="output directory of a run")
    parser.add_argument("-o", "--output", type=Path, help="HTML file to write (default: RUN_DIR/report.html)")
    parser.add_argument(
        "--transcripts", type=_count, default=12, metavar="N", help="number of tasks with transcripts (default: 12)"
    )
    options = parser.parse_args(argv)
    output = options.output or options.run / "report.html"
    write_report(options.run, output, transcripts=options.transcripts)
    print(output)
    return 0


def write_report(run_folder: Path, output: Path, *, transcripts: int = 12) -> None:
    """Write the report of a run's folder.

    Args:
        run_folder: Output of a run: ``metrics.jsonl``, ``evaluation.json``, ``manifest.json``, episodes as JSONL.
        output: The HTML file; its folder is created.
        transcripts: Maximum number of episodes read from each file.

    Raises:
        rllm_gym.commands.errors.CommandError: The folder holds no output of a run.
        OSError: The page cannot be written.
    """
    page = render_page(read_run(run_folder, transcripts=transcripts))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page, encoding="utf-8")


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} must be at least 0")
    return value


__all__ = ["main", "write_report"]

"""``rllm-gym view``: a web page on this machine with the curves, episodes and transcripts of runs, finished or not."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
from pathlib import Path

from rllm_gym.commands.errors import CommandError
from rllm_gym.commands.view.episode_index import EpisodeIndex
from rllm_gym.commands.view.run_files import open_runs
from rllm_gym.commands.view.token_text import TokenTexts

_EXAMPLES = """examples:
  rllm-gym view runs/train                    # then open http://127.0.0.1:7860/
  rllm-gym view runs/seed-0 runs/seed-1       # curves of both in each chart, and tasks side by side
  rllm-gym view before.jsonl after.jsonl      # files of `rllm-gym eval --output`
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="rllm-gym view",
        description="Serve a page about runs to your browser: curves, episodes with filters, groups, transcripts with\n"
        "token probabilities, and comparisons. It follows runs that are still training. Ends at Ctrl-C.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", metavar="RUN", type=Path, nargs="+", help="output folder of a run, or a file of episodes (.jsonl)"
    )
    parser.add_argument("--port", type=int, default=7860, help="port of 127.0.0.1, 0 for any free one (default: 7860)")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FOLDER",
        help="folder with a tokenizer.json, for all runs (default: the run's)",
    )
    parser.add_argument(
        "--index", type=Path, metavar="FILE", help="SQLite file of the index (default: in ~/.cache/rllm-gym)"
    )
    options = parser.parse_args(argv)
    if not 0 <= options.port < 1 << 16:
        raise CommandError(f"--port {options.port} must be from 0 to 65535")
    if options.tokenizer is not None and not (options.tokenizer / "tokenizer.json").is_file():
        raise CommandError(f"--tokenizer {options.tokenizer}: there is no tokenizer.json; give the folder of a model")
    runs = open_runs(options.runs)
    # aiohttp is imported only here, so that --help and errors of the arguments do not need it.
    from rllm_gym.commands.view.server import ViewServer, serve

    with EpisodeIndex(options.index, runs) as index, contextlib.suppress(KeyboardInterrupt):
        try:
            asyncio.run(serve(ViewServer(runs, index, TokenTexts(options.tokenizer)), options.port, _started))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise CommandError(f"--port {options.port} is in use; give another, or 0 for any free port") from error
    return 0


def _started(url: str) -> None:
    print(f"Viewer at {url} (Ctrl-C to quit)", flush=True)


__all__ = ["main"]

"""``rllm-gym list``: print the environments as a table, as JSON, as Markdown, or one manual in full."""

from __future__ import annotations

import argparse
import json

import gymnasium
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from rllm_gym.commands.env_arguments import unknown_environment
from rllm_gym.commands.env_docs import EnvDocs, all_env_docs, as_markdown, env_docs
from rllm_gym.commands.terminal import visible
from rllm_gym.envs import INTEGRATIONS, MINIWOB

_EXAMPLES = """examples:
  rllm-gym list                        # all environments
  rllm-gym list rllm/FrozenLake-v0     # the manual of one environment
  rllm-gym list --json                 # machine-readable output
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="rllm-gym list",
        description="List the environments with their tasks and the keyword arguments of gym.make.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("env", nargs="?", metavar="ENV", help="environment id whose full manual is shown")
    parser.add_argument("--json", action="store_true", help="print a JSON list of objects")
    parser.add_argument("--markdown", action="store_true", help="print the manuals as a single Markdown page")
    options = parser.parse_args(argv)
    if options.env is None:
        chosen = all_env_docs()
    elif options.env in gymnasium.registry:
        chosen = [env_docs(options.env)]
    else:
        raise unknown_environment(options.env)

    if options.json:
        print(json.dumps([_as_json(entry) for entry in chosen], indent=2, ensure_ascii=False))
    elif options.markdown:
        print(_as_markdown(chosen), end="")
    elif options.env is not None:
        _print_manual(chosen[0])
    else:
        _print_table(chosen)
    return 0


def _print_table(entries: list[EnvDocs]) -> None:
    console = Console()
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 1, 0))
    table.add_column("id", no_wrap=True, style="cyan")
    table.add_column("task and arguments")
    for entry in entries:
        arguments = " ".join(f"{argument.name}={argument.default}" for argument in entry.arguments)
        table.add_row(
            Text(entry.env_id), Text.assemble(visible(entry.summary), "\n", (visible(arguments), "bright_black"))
        )
    console.print(table)
    if MINIWOB:
        console.print(
            f"[bright_black]{len(MINIWOB)} more environments are the tasks of MiniWoB++, e.g. {next(iter(MINIWOB))}.[/]"
        )
    console.print(f"[bright_black]Of other libraries (docs/integrations.md): {', '.join(INTEGRATIONS)}.[/]")
    console.print(
        "[bright_black]Run `rllm-gym list ENV` for the manual of an environment, `rllm-gym play ENV` to play it.[/]"
    )


def _print_manual(entry: EnvDocs) -> None:
    console = Console()
    console.print(Text(entry.env_id, style="bold cyan"))
    console.print(Text(_make_line(entry), style="bright_black"))
    console.print()
    console.print(Markdown(visible(as_markdown(entry.text, entry.arguments))))


def _make_line(entry: EnvDocs) -> str:
    return f'gym.make("{entry.env_id}")  # {entry.entry_point}'


def _as_json(entry: EnvDocs) -> dict[str, object]:
    return {
        "id": entry.env_id,
        "summary": entry.summary,
        "entry_point": entry.entry_point,
        "kwargs": entry.kwargs,
        "arguments": {argument.name: argument.default for argument in entry.arguments},
        "missing": entry.missing,
    }


def _as_markdown(entries: list[EnvDocs]) -> str:
    lines = [
        "# Environments",
        "",
        "This page is generated from the class docstrings by `make docs`; edit the docstrings instead.",
        "",
        "| id | task |",
        "|---|---|",
        *[f"| [`{entry.env_id}`](#{_anchor(entry.env_id)}) | {entry.summary} |" for entry in entries],
        "",
    ]
    first_id: dict[str, str] = {}
    for entry in entries:
        lines += [f"## {entry.env_id}", ""]
        fixed = ", ".join(f"{name}={value!r}" for name, value in entry.kwargs.items())
        base = first_id.setdefault(entry.entry_point, entry.env_id)
        if base != entry.env_id:
            lines += [f"[`{base}`](#{_anchor(base)}) with `{fixed or 'no other arguments'}`.", ""]
        else:
            lines += [_demote_headings(as_markdown(entry.text, entry.arguments)), ""]
    return "\n".join(lines)


def _demote_headings(text: str) -> str:
    """Demote headings by one level: docstring headings start at ``##``, and so does the heading of an id."""
    fenced = False
    lines = []
    for line in text.strip().splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        lines.append(f"#{line}" if line.startswith("##") and not fenced else line)
    return "\n".join(lines)


def _anchor(env_id: str) -> str:
    """Return GitHub's anchor of a heading: lower case, letters, digits and hyphens."""
    return "".join(character for character in env_id.lower() if character.isalnum() or character == "-")

"""The entry point of the command line: find the command, run it, and print expected failures without a traceback.

A command is a callable that takes its arguments (``list[str]``) and returns an exit status. The commands of this
package are in ``COMMANDS``; other packages add theirs through the entry-point group ``rllm_gym.commands``.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

import gymnasium.error

import rllm_gym
from rllm_gym.commands.errors import CommandError
from rllm_gym.commands.extras import advice_for_missing
from rllm_gym.core.errors import RllmGymError
from rllm_gym.trainer_package import check_trainer_package

Command = Callable[[list[str]], int]

# name -> (module:callable, summary). Modules are imported when their command runs.
COMMANDS: dict[str, tuple[str, str]] = {
    "list": ("rllm_gym.commands.list_envs:main", "list the environments with their tasks and arguments"),
    "play": ("rllm_gym.commands.play:main", "play an environment in the terminal"),
    "eval": ("rllm_gym.commands.evaluate:main", "evaluate a model: pass@1, pass@k, stop reasons, faults"),
    "report": ("rllm_gym.commands.view.report:main", "write the page of `view` as one HTML file"),
    "view": ("rllm_gym.commands.view:main", "browse runs in your browser: curves, episodes, transcripts, comparisons"),
    "doctor": ("rllm_gym.commands.doctor:main", "check the installation and suggest fixes"),
    "swe": ("rllm_gym.commands.swe:main", "create repository tasks from bug-fix commits"),
    "serve-sites": (
        "rllm_gym.commands.serve_sites:main",
        "serve a task of the built-in web sites for your own browser",
    ),
    "serve-agent": (
        "rllm_gym.commands.serve_agent:main",
        "serve a trained agent at an OpenAI-compatible endpoint, and log its calls",
    ),
    "import-logs": (
        "rllm_gym.commands.import_logs:main",
        "turn logs of a served agent, with feedback, into data to train on",
    ),
    "model": ("rllm_gym.commands.model:main", "write a small pretrained model to a folder, without a model hub"),
    "new-env": ("rllm_gym.commands.new_env:main", "create a new environment and its test from a template"),
}
# Summaries of the trainer's commands, so that --help does not import torch.
_PLUGIN_SUMMARIES = {
    "train": "train a model on an environment with reinforcement learning",
    "sft": "fine-tune a model on demonstrations (SFT)",
    "dpo": "train a model on preference pairs (DPO)",
    "merge": "merge an adapter into its base model",
}

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit status 0 (done), 2 (failed with a message) or 130 (Ctrl-C)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()
        return status
    except CommandError as error:
        return _fail(str(error))
    except (RllmGymError, gymnasium.error.Error) as error:
        return _fail(f"{type(error).__name__}: {error}")
    except BrokenPipeError:
        # The reader (head, less) has closed the pipe; buffered output must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _dispatch(arguments: list[str]) -> int:
    plugins = _plugins()
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage(plugins))
        return 0
    _put_current_folder_last()
    name, rest = arguments[0], arguments[1:]
    if name in ("-V", "--version"):
        from rllm_gym import __version__

        print(f"rllm-gym {__version__}")
        return 0
    try:
        command = _find(name, plugins)
        return int(command(rest) or 0)
    except ModuleNotFoundError as error:
        advice = advice_for_missing(error.name or "", command=name)
        if advice is None:
            raise
        raise CommandError(f"`rllm-gym {name}` needs {error.name}, which is not installed: {advice}") from error


def _find(name: str, plugins: dict[str, EntryPoint]) -> Command:
    if name in COMMANDS:
        module, _, attribute = COMMANDS[name][0].partition(":")
        command: Command = getattr(importlib.import_module(module), attribute)
        return command
    if name in plugins:
        if plugins[name].value.startswith("trainers."):
            try:
                check_trainer_package()
            except ImportError as error:
                raise CommandError(str(error)) from error
        plugin: Command = plugins[name].load()
        return plugin
    known = ", ".join([*COMMANDS, *plugins])
    raise CommandError(f"unknown command {name!r}; available commands: {known} (see `rllm-gym --help`)")


def _put_current_folder_last() -> None:
    """Let a user's own environments and agents be imported from the current folder, and hide no installed module.

    ``python -m`` and ``PYTHONPATH=.`` put it first, where a folder ``trainers`` or a file ``datasets.py`` would be
    imported instead of the package. In a clone of rllm-gym its place is kept: the packages are there.
    """
    folder = os.getcwd()
    here = [entry for entry in sys.path if os.path.abspath(entry) == folder]
    if here and folder == os.path.dirname(os.path.dirname(os.path.abspath(rllm_gym.__file__))):
        return
    sys.path[:] = [entry for entry in sys.path if entry not in here] + [folder]


def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group="rllm_gym.commands") if entry.name not in COMMANDS}


def _usage(plugins: dict[str, EntryPoint]) -> str:
    rows = {name: summary for name, (_, summary) in COMMANDS.items()}
    for name, entry in plugins.items():
        rows[name] = _PLUGIN_SUMMARIES.get(name, f"provided by {entry.dist.name if entry.dist else entry.value}")
    width = max(len(name) for name in rows)
    lines = [f"  {name:<{width}}  {summary}" for name, summary in rows.items()]
    return "\n".join(
        [
            "usage: rllm-gym [-h] [-V] COMMAND ...",
            "",
            "Gymnasium text environments, evaluation and training for language-model agents.",
            "",
            "commands:",
            *lines,
            "",
            "options:",
            "  -h, --help     show this help message and exit",
            "  -V, --version  print the version and exit",
            "",
            "examples:",
            "  rllm-gym list",
            "  rllm-gym play rllm/FrozenLake-v0",
            "",
            "Run `rllm-gym COMMAND --help` for the arguments of a command and examples.",
        ]
    )


def _fail(message: str) -> int:
    # Only several problems have lines of their own; libraries' messages have any number of lines.
    items = [" ".join(item.split()) for item in message.split("\n  - ")]
    text = ("\n  - " if len(items) > 2 else " ").join(items)
    print(f"rllm-gym: error: {text}", file=sys.stderr)
    return EXIT_ERROR

"""Create an environment from command line arguments, ``ENV --kwarg size=8``, with helpful errors."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
from collections.abc import Iterator
from typing import Any

import gymnasium

from rllm_gym.commands.errors import CommandError
from rllm_gym.commands.extras import advice_for_missing
from rllm_gym.core import RllmGymError
from rllm_gym.engine.env_creation import is_game, nearest_id


def add_environment_arguments(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add the arguments that every command with an environment has; ``several``: any number of ids."""
    parser.add_argument(
        "env", metavar="ENV", nargs="*" if several else None, help="environment id (see `rllm-gym list`)"
    )
    parser.add_argument(
        "--kwarg",
        "-k",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="keyword argument of the environment, e.g. -k size=8 -k split=test; the value is JSON or plain text "
        "(repeatable; see `rllm-gym list ENV`)",
    )


def parse_kwargs(pairs: list[str], option: str = "--kwarg") -> dict[str, Any]:
    """Parse ``["size=8", "view=window"]`` to ``{"size": 8, "view": "window"}``.

    Args:
        pairs: The values of the option.
        option: Name of the option, for errors.

    Raises:
        CommandError: A pair has no ``=``, or its name is not an identifier.
    """
    kwargs: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name.isidentifier():
            raise CommandError(f"{option} {pair!r} must have the form NAME=VALUE, e.g. {option} size=8")
        kwargs[name] = _value(value)
    return kwargs


@contextlib.contextmanager
def creation_errors(env_id: str) -> Iterator[None]:
    """Report errors of the creation of an environment in one line, with a suggestion for a mistyped id.

    Raises:
        CommandError: There is no such id, or the environment rejects its arguments.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        import_module(module)
    if name not in gymnasium.registry and not is_game(name):
        raise unknown_environment(env_id)
    try:
        yield
    except ModuleNotFoundError as error:
        advice = advice_for_missing(error.name or "")
        if advice is None:
            raise CommandError(f"{env_id} cannot be imported: {error}") from error
        raise CommandError(f"{env_id} requires {error.name}, which is not installed: {advice}") from error
    except (TypeError, ValueError, OSError, ImportError, gymnasium.error.Error, RllmGymError) as error:
        raise CommandError(f"invalid arguments for {env_id}: {error} (see `rllm-gym list {env_id}`)") from error


def unknown_environment(env_id: str) -> CommandError:
    """Return the error of an id that is not registered, with the nearest one."""
    return CommandError(f"unknown environment {env_id!r}{nearest_id(env_id)}; run `rllm-gym list` for all ids")


def import_module(name: str) -> None:
    """Import the module before the colon of ``module:id``, which registers the id.

    Raises:
        CommandError: It cannot be imported.
    """
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise CommandError(
            f"module {name!r} cannot be imported ({error}); "
            "install it, or run the command in the directory that contains it"
        ) from error


def parse_task(task: str | None) -> int | str | None:
    """Return an index if the text is an integer, else a task id."""
    if task is None:
        return None
    return int(task) if task.isascii() and task.isdigit() else task


def _value(text: str) -> Any:
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    try:
        return json.loads(text)
    except ValueError:
        return text

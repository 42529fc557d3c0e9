"""The options of ``rllm-gym eval`` for a workflow of several agents, and the roles they configure."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path

from rllm_gym.commands.env_arguments import parse_kwargs
from rllm_gym.commands.errors import CommandError
from rllm_gym.engine import Role, Workflow
from rllm_gym.samplers import Sampler, WeightUpdate

_OF_ONE_AGENT = ("agent", "system_prompt", "agent_kwarg")
_ADAPTER = "adapter_config.json"


def add_workflow_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--workflow`` and related options."""
    group = parser.add_argument_group("workflow options (several agents)")
    group.add_argument(
        "--workflow",
        metavar="MODULE:CLASS",
        help="workflow to run instead of a single agent, e.g. rllm_gym.engine.workflows:SolverJudge; ENV may be a game",
    )
    group.add_argument(
        "--workflow-kwarg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="keyword argument of the workflow (repeatable)",
    )
    group.add_argument(
        "--role",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="adapter of a role, e.g. solver=runs/rl/model/solver; the other roles use --model.path (repeatable)",
    )


def check_workflow_arguments(options: argparse.Namespace) -> None:
    """Check the workflow options.

    Raises:
        CommandError: An option is given that has no effect here, or a role's adapter cannot be served.
    """
    if options.workflow is None:
        for name in ("workflow_kwarg", "role"):
            if getattr(options, name):
                raise CommandError(f"--{name.replace('_', '-')} requires --workflow")
        return
    for name in _OF_ONE_AGENT:
        if getattr(options, name) not in (None, []):
            raise CommandError(
                f"--{name.replace('_', '-')} has no effect with --workflow, which creates its own agents"
            )
    if options.role and (options.base_url is not None or options.model.startswith("scripted:")):
        raise CommandError("--role requires a local --model.path: a directory or a hub id")
    if options.role and (Path(options.model) / _ADAPTER).is_file():
        raise CommandError(
            f"--model.path {options.model} is an adapter, but --role requires the base model of the adapters: pass the "
            f"base model as --model.path, and --role NAME={options.model} for the roles that use this adapter"
        )


def workflow_of(options: argparse.Namespace) -> Callable[[], Workflow]:
    """Return a factory of the workflow.

    Raises:
        CommandError: It cannot be imported, is not a workflow, or rejects its arguments.
    """
    kwargs = parse_kwargs(options.workflow_kwarg, "--workflow-kwarg")
    module, _, name = options.workflow.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise CommandError(
            f"--workflow {options.workflow} cannot be imported: {error}; expected MODULE:CLASS"
        ) from error
    try:
        instance = found(**kwargs)
    except (TypeError, ValueError) as error:
        raise CommandError(f"invalid arguments for workflow {options.workflow}: {error}") from error
    if not isinstance(instance, Workflow):
        raise CommandError(
            f"--workflow {options.workflow} returned {type(instance).__name__}, expected a rllm_gym.engine.Workflow"
        )
    unknown = sorted(set(_folders(options)) - set(instance.roles))
    if unknown:
        raise CommandError(
            f"--role {unknown[0]}: unknown role; the roles of {options.workflow} are {', '.join(instance.roles)}"
        )
    return lambda: found(**kwargs)


def roles_of(options: argparse.Namespace) -> dict[str, Role]:
    """Return the roles that have an adapter."""
    return {name: Role(weights=folder) for name, folder in _folders(options).items()}


async def sync_adapters(options: argparse.Namespace, sampler: Sampler) -> None:
    """Push the adapters of :func:`roles_of` to the sampler: each folder once, under its path.

    Raises:
        CommandError: A folder holds no adapter, or one of another model.
    """
    for folder in dict.fromkeys(_folders(options).values()):
        try:
            await sampler.sync_weights(WeightUpdate.from_adapter(folder, name=folder))
        except ValueError as error:
            raise CommandError(f"--role: {error}") from error


def _folders(options: argparse.Namespace) -> dict[str, str]:
    folders: dict[str, str] = {}
    for pair in options.role:
        name, equals, folder = pair.partition("=")
        if not (name and equals and folder):
            raise CommandError(f"--role {pair!r} must have the form NAME=FOLDER, e.g. solver=runs/rl/model/solver")
        if name in folders:
            raise CommandError(f"--role {name} is given more than once")
        folders[name] = folder
    return folders

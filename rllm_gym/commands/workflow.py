"""What ``rllm-gym eval`` plays with: the agent, or the workflow of several agents with the adapters of its roles."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rllm_gym.agents import BaseAgent, default_agent
from rllm_gym.commands.env_arguments import parse_kwargs
from rllm_gym.commands.errors import CommandError
from rllm_gym.core.importing import import_object
from rllm_gym.engine import Role, Workflow
from rllm_gym.samplers import Sampler, WeightUpdate

_ADAPTER = "adapter_config.json"


def add_agent_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--agent`` and related options."""
    group = parser.add_argument_group("agent options")
    group.add_argument(
        "--agent",
        metavar="MODULE:CLASS",
        help="agent class, or workflow class of several agents, e.g. rllm_gym.engine.workflows:SolverJudge (ENV may "
        "then be a game); default: the default agent of the environment",
    )
    group.add_argument("--system-prompt", help="system prompt that replaces the agent's own; '' for none")
    group.add_argument(
        "--agent-kwarg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="keyword argument of the agent or workflow (repeatable)",
    )
    group.add_argument(
        "--role",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="adapter of a role of the workflow, e.g. solver=runs/rl/model/solver; the other roles use --model.path "
        "(repeatable)",
    )


def make_agent(options: argparse.Namespace) -> Callable[[], BaseAgent | Workflow]:
    """Return a factory of the agent or workflow.

    Raises:
        CommandError: It cannot be imported, rejects its arguments, or does not have the roles of ``--role``.
    """
    kwargs = {**options.run_agent_kwargs, **parse_kwargs(options.agent_kwarg, "--agent-kwarg")}
    if options.system_prompt is not None:
        kwargs["system_prompt"] = options.system_prompt
    if options.agent is None:
        agent: Any = default_agent(options.env)
    else:
        try:
            agent = import_object(options.agent, "--agent")
        except ValueError as error:
            raise CommandError(str(error)) from error
    name = options.agent or agent.__name__
    try:
        instance = agent(**kwargs)
    except (TypeError, ValueError) as error:
        raise CommandError(f"invalid arguments for --agent {name}: {error}") from error
    if not isinstance(instance, BaseAgent | Workflow):
        raise CommandError(
            f"--agent {name} creates a {type(instance).__name__}; expected a rllm_gym.agents.BaseAgent or a "
            "rllm_gym.engine.Workflow"
        )
    _check_roles(options, name, instance.roles if isinstance(instance, Workflow) else ())
    return lambda: agent(**kwargs)


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


def _check_roles(options: argparse.Namespace, name: str, roles: tuple[str, ...]) -> None:
    for role in _folders(options):
        if role not in roles:
            known = f"the roles of {name} are {', '.join(roles)}" if roles else f"{name} is a single agent"
            raise CommandError(f"--role {role}: unknown role; {known}")
    if options.role and (options.url is not None or options.model.startswith("scripted:")):
        raise CommandError("--role requires a local --model.path: a directory or a hub id")
    if options.role and (Path(options.model) / _ADAPTER).is_file():
        raise CommandError(
            f"--model.path {options.model} is an adapter, but --role requires the base model of the adapters: pass the "
            f"base model as --model.path, and --role NAME={options.model} for the roles that use this adapter"
        )


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

"""``rllm-gym eval``: evaluate a model, alone or in several roles: success rates with confidence intervals."""

from __future__ import annotations

import argparse
import asyncio
import difflib
import json
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rllm_gym.commands.endpoint import add_endpoint_arguments, check_endpoint_arguments
from rllm_gym.commands.env_arguments import add_environment_arguments, creation_errors, import_module, parse_kwargs
from rllm_gym.commands.errors import CommandError
from rllm_gym.commands.eval_files import episodes_to_resume, manifest_of, settings_of_run
from rllm_gym.commands.model_sampler import add_model_arguments, positive, sampler_of
from rllm_gym.commands.terminal import visible
from rllm_gym.commands.workflow import add_agent_arguments, make_agent, roles_of, sync_adapters
from rllm_gym.core import Episode, TextEnv, stream_seed
from rllm_gym.engine import (
    AgentExecutionEngine,
    AgentWorkflowEngine,
    EnvironmentUnavailable,
    EpisodeSpec,
    Workflow,
    compute_pass_at_k,
    save_episodes,
    write_manifest,
)
from rllm_gym.engine.env_creation import is_game, make_env_with_split
from rllm_gym.samplers import SamplerError, SamplingParams

Engine = AgentExecutionEngine | AgentWorkflowEngine

_EXIT_TERMINATED = 143
# Options of rllm-gym train that are accepted as well, as are --env.kwargs.NAME and --env.agent-kwargs.NAME.
_TRAIN_NAMES = {f"--env.{name}": f"--{name}" for name in ("agent", "max-turns", "workers", "parallel")}
# Other options of rllm-gym train, and names without their section.
_OTHER_NAMES = {
    **{f"--{name}": f"--sampling.{name}" for name in ("temperature", "top-p", "top-k", "max-tokens", "context-length")},
    **{f"--{name}": f"--model.{name}" for name in ("device", "dtype")},
    "--agent-kwargs": "--agent-kwarg",
    "--base-url": "--url",
    "--env.id": "ENV, without an option",
    "--max-new-tokens": "--sampling.max-tokens",
    "--model": "--model.path",
    "--n": "--samples",
    "--roles": "--role",
    "--sampler.url": "--url",
    "--validation.samples": "--samples",
    "--validation.tasks": "--tasks",
    "--workflow": "--agent",
}
_EXAMPLES = """examples:
  rllm-gym eval rllm/Math-v0 --model.path Qwen/Qwen3-0.6B --samples 4
  rllm-gym eval --run runs/my-run --tasks 256 --output runs/my-run/test.jsonl   # as it was validated in training
  rllm-gym eval rllm/FrozenLake-v0 --env.kwargs.size 8 --env.max-turns 20 --model.path ./model   # as in rllm-gym train
  rllm-gym eval --run runs/my-run --tasks 256 --output runs/my-run/test.jsonl --resume   # after SIGTERM or Ctrl-C
  rllm-gym eval rllm/Math-v0 -k tasks=gsm8k_test.jsonl --model.path ./model --sampling.temperature 0
  rllm-gym eval rllm/FrozenLake-v0 --model.path scripted:replies.txt
  rllm-gym eval rllm/Math-v0 --model.path BASE --agent rllm_gym.engine.workflows:SolverJudge \\
      --role solver=runs/rl/model/solver --role judge=runs/rl/model/judge
  rllm-gym eval rllm/Math-v0 --url http://localhost:8000/v1 --model.path Qwen/Qwen3-0.6B
"""


def main(argv: list[str]) -> int:
    options = _parse(argv)
    if options.samples > 1 and options.temperature == 0:
        raise CommandError(
            f"--samples {options.samples} requires --sampling.temperature > 0: at temperature 0 all episodes of a task "
            "are equal"
        )
    check_endpoint_arguments(options)
    if module := options.env.rpartition(":")[0]:
        import_module(module)
    agent = make_agent(options)
    kwargs, tasks, reply_tokens = _environment(options, workflow=isinstance(agent(), Workflow))
    max_tokens = reply_tokens if options.max_tokens is None else options.max_tokens
    try:
        params = SamplingParams(
            temperature=options.temperature, top_p=options.top_p, top_k=options.top_k, max_tokens=max_tokens
        )
    except ValueError as error:
        raise CommandError(str(error)) from error
    if options.output is not None:
        if options.output.is_dir():
            raise CommandError(f"--output {options.output} is a directory; expected a file, e.g. episodes.jsonl")
        options.output.parent.mkdir(parents=True, exist_ok=True)
    specs = _specs(options, tasks)
    episodes: list[Episode] = []
    if options.resume:
        known = {spec.episode_id for spec in specs}
        earlier = episodes_to_resume(options.output, _config(options, kwargs))
        episodes = [episode for episode in earlier if episode.episode_id in known]
    done = {episode.episode_id for episode in episodes}
    engine: Engine | None = None
    try:
        engine = _engine(options, agent, kwargs, params)
        if options.output is not None and episodes:
            save_episodes(options.output, episodes)
        left = [spec for spec in specs if spec.episode_id not in done]
        complete = asyncio.run(_evaluate(options, kwargs, engine, left, episodes))
    except (SamplerError, EnvironmentUnavailable) as error:
        raise CommandError(f"{options.env}: {error}") from error
    finally:
        # Also saves the episodes of an interrupted evaluation.
        if options.output is not None and len(episodes) > len(done):
            _save(options, kwargs, specs, episodes)
    result = {**_result(options, kwargs.get("split"), episodes, engine), "complete": complete}
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        _print(options, result)
    if not complete:
        how = "continue with the same command and --resume" if options.output else "nothing was saved (no --output)"
        print(f"stopped after {len(episodes)} of {len(specs)} episodes; {how}", file=sys.stderr)
    if complete and episodes and result["dropped"] == len(episodes):
        why = ": ".join(filter(None, [episodes[0].stop_reason.value, episodes[0].fault]))
        raise CommandError(f"no success rate: all {len(episodes)} episodes were dropped; the first one: {why}")
    return 0 if complete else _EXIT_TERMINATED


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rllm-gym eval",
        description="Evaluate a model on an environment and print its success rate (pass@1 to pass@n, with 95%\n"
        "confidence intervals over tasks), the stop reasons of the episodes, the faults, and the throughput.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_environment_arguments(parser, optional=True)
    parser.set_defaults(run_kwargs={}, run_agent_kwargs={}, deadlines=None)
    parser.add_argument(
        "--run",
        type=Path,
        metavar="FOLDER",
        help="output folder of `rllm-gym train`: evaluate its final model as it was validated, with its environment, "
        "agent, lengths, temperature and dtype; other options override them",
    )
    parser.add_argument(
        "--model.path",
        dest="model",
        metavar="PATH",
        help="Hugging Face model directory or hub id, directory of a PEFT adapter, or scripted:FILE for replies from a "
        "file, one per line (JSON strings in .jsonl), which every episode reads from the start and repeats at the end",
    )
    measurement = parser.add_argument_group("evaluation options")
    measurement.add_argument(
        "--samples", type=positive, default=1, help="number of episodes per task, n of pass@n (default: 1)"
    )
    measurement.add_argument("--tasks", type=positive, default=64, help="number of tasks (default: 64)")
    measurement.add_argument("--split", help="train, validation or test (default: test, if the environment has splits)")
    measurement.add_argument("--seed", type=int, default=0, help="seed of the environment and the sampler (default: 0)")
    sampling = parser.add_argument_group("sampling options")
    for name, kind, default, text in (
        ("temperature", float, 1.0, "sampling temperature, 0 for greedy (default: 1)"),
        ("top-p", float, 1.0, "nucleus sampling threshold (default: 1)"),
        ("top-k", int, 0, "number of most likely tokens to keep, 0 for all (default: 0)"),
        ("max-tokens", int, None, "maximum tokens per reply (default: what the environment asks for, 512 or more)"),
        ("max-response-tokens", positive, None, "maximum sampled tokens per episode (default: no limit)"),
        ("context-length", positive, None, "maximum tokens per conversation (default: the model's)"),
    ):  # the names of the options of rllm-gym train
        dest = name.replace("-", "_")
        sampling.add_argument(f"--sampling.{name}", dest=dest, type=kind, default=default, metavar="N", help=text)
    add_agent_arguments(parser)
    add_endpoint_arguments(parser)
    execution = parser.add_argument_group("execution options")
    execution.add_argument(
        "--max-turns", type=positive, help="maximum turns per episode (default: the environment's limit)"
    )
    execution.add_argument(
        "--workers",
        choices=["thread", "process"],
        default="thread",
        help="where environments run; processes isolate crashes (default: thread)",
    )
    execution.add_argument("--parallel", type=positive, default=64, help="number of concurrent episodes (default: 64)")
    add_model_arguments(execution)
    execution.add_argument("--output", "-o", type=Path, metavar="FILE", help="write the episodes to FILE as JSON lines")
    execution.add_argument(
        "--resume", action="store_true", help="continue an evaluation that was stopped, from the episodes in --output"
    )
    execution.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


def _environment(options: argparse.Namespace, *, workflow: bool) -> tuple[dict[str, Any], int | None, int]:
    """Return the environment's arguments, its number of tasks (``None`` if it has no task set), and the maximum length
    of a reply that it asks for.
    """
    kwargs = {**options.run_kwargs, **parse_kwargs(options.kwarg)}
    split = kwargs.get("split", options.split or "test")
    if options.split not in (None, split):
        raise CommandError(f"--split {options.split} conflicts with --kwarg split={split}")
    if not workflow and is_game(options.env):
        raise CommandError(
            f"{options.env} is a game of several agents: --agent must be a workflow, e.g. "
            "rllm_gym.engine.workflows:SelfPlay"
        )
    # Created once here, so that a wrong argument gives one clear line instead of a fault in every episode.
    with creation_errors(options.env):
        env, kwargs = make_env_with_split(options.env, kwargs, split)
    try:
        if options.split is not None and "split" not in kwargs:
            raise CommandError(f"--split {options.split}: {options.env} has no splits (no parameter `split`)")
        tasks = getattr(env.unwrapped, "tasks", None)
        reply_tokens = getattr(env.unwrapped, "reply_tokens", TextEnv.reply_tokens)
        return kwargs, None if tasks is None else len(tasks), reply_tokens
    finally:
        env.close()


def _specs(options: argparse.Namespace, tasks: int | None) -> list[EpisodeSpec]:
    """Return ``n`` episodes of each task, each with its own dynamics seed."""
    count = options.tasks if tasks is None else min(options.tasks, tasks)
    return [
        EpisodeSpec(
            # Without a task set the seed alone selects the task, and all episodes of one task share it.
            task=None if tasks is None else index,
            seed=stream_seed("eval", options.seed, index, *([] if tasks is None else [member])) % 2**32,
            group_id=str(index),
            episode_id=f"{index}#{member}",
        )
        for index in range(count)
        for member in range(options.samples)
    ]


def _engine(
    options: argparse.Namespace, agent: Callable[[], Any], kwargs: dict[str, Any], params: SamplingParams
) -> Engine:
    sampler = sampler_of(options)
    common: dict[str, Any] = {
        "env": options.env,
        "sampler": sampler,
        "env_kwargs": kwargs,
        "sampling_params": params,
        "n_parallel": options.parallel,
        "workers": options.workers,
        "max_turns": options.max_turns,
        "max_response_tokens": options.max_response_tokens,
        "max_context_tokens": options.context_length,
        **({} if options.deadlines is None else {"deadlines": options.deadlines}),
        "seed": options.seed,
        "progress": sys.stderr.isatty() and not options.json,
    }
    try:
        if isinstance(agent(), Workflow):
            return AgentWorkflowEngine(agent, roles=roles_of(options), **common)
        return AgentExecutionEngine(agent=agent, **common)
    except ValueError as error:
        asyncio.run(sampler.close())
        raise CommandError(str(error)) from error


async def _evaluate(
    options: argparse.Namespace,
    kwargs: dict[str, Any],
    engine: Engine,
    specs: list[EpisodeSpec],
    episodes: list[Episode],
) -> bool:
    """Run the specs; ``episodes`` holds finished ones, also after an exception. Return whether all were run: SIGTERM
    stops the evaluation.

    A finished episode is also appended to the output, which a process that is killed leaves behind.
    """
    stopped = False
    task, loop = asyncio.current_task(), asyncio.get_running_loop()

    def stop() -> None:
        nonlocal stopped
        stopped = True
        assert task is not None
        task.cancel()

    if threading.current_thread() is threading.main_thread():
        loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        await sync_adapters(options, engine.sampler)
        async with engine:
            async for episode in engine.stream(specs):
                if options.output is not None:
                    # The first one replaces the results of an earlier evaluation.
                    save_episodes(options.output, [episode], append=bool(episodes))
                    if not episodes:
                        _write_manifest(options, kwargs, [episode])
                episodes.append(episode)
    except asyncio.CancelledError:
        if not stopped:
            raise
    finally:
        await engine.sampler.close()
    return not stopped


def _save(
    options: argparse.Namespace, kwargs: dict[str, Any], specs: list[EpisodeSpec], episodes: list[Episode]
) -> None:
    place = {spec.episode_id: index for index, spec in enumerate(specs)}
    save_episodes(options.output, sorted(episodes, key=lambda episode: place[episode.episode_id]))
    _write_manifest(options, kwargs, episodes)


def _config(options: argparse.Namespace, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the options for the manifest."""
    config = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    return {**config, "env_kwargs": kwargs}


def _write_manifest(options: argparse.Namespace, kwargs: dict[str, Any], episodes: list[Episode]) -> None:
    tiers = {str(episode.info.get("sandbox_tier", "none")) for episode in episodes}
    write_manifest(
        manifest_of(options.output),
        config=_config(options, kwargs),
        seeds={"eval": options.seed},
        sandbox_tier=", ".join(sorted(tiers - {"none"})) or "none",
    )


def _result(options: argparse.Namespace, split: str | None, episodes: list[Episode], engine: Engine) -> dict[str, Any]:
    """Return everything that is printed, as JSON types."""
    sizes = sorted({1, options.samples, *(1 << power for power in range(options.samples.bit_length()))} - {0})
    kept = [episode for episode in episodes if episode.trainable]
    # If every episode was dropped, their failures say nothing about the model.
    estimates = compute_pass_at_k(episodes, [size for size in sizes if size <= options.samples]) if kept else {}
    stats = engine.stats
    return {
        "env": options.env,
        "model": options.model,
        "split": split,
        "tasks": len({episode.group_id for episode in episodes}),
        "episodes": len(episodes),
        "pass": {
            str(size): {"value": estimate.value, "low": estimate.low, "high": estimate.high}
            for size, estimate in estimates.items()
        },
        "mean_reward": sum(episode.reward for episode in kept) / len(kept) if kept else None,
        "mean_turns": sum(episode.num_turns for episode in kept) / len(kept) if kept else None,
        **(_of_agents(kept) if isinstance(engine, AgentWorkflowEngine) else {}),
        "stop_reasons": dict(Counter(str(episode.stop_reason) for episode in episodes).most_common()),
        "faults": dict(stats.faults),
        "retries": stats.retries,
        "dropped": len(episodes) - len(kept),
        "sampled_tokens": stats.sampled_tokens,
        "tokens_per_second": stats.tokens_per_second,
        "seconds": stats.wall,
        "output": None if options.output is None else str(options.output),
    }


def _of_agents(episodes: list[Episode]) -> dict[str, dict[str, float]]:
    """Return the means of the workflow's metrics and of each role's reward."""
    metrics: dict[str, list[float]] = {}
    rewards: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.metrics.items():
            metrics.setdefault(name, []).append(value)
        for trajectory in episode.trajectories:
            rewards.setdefault(trajectory.role, []).append(trajectory.reward)
    return {
        what: {name: sum(values) / len(values) for name, values in found.items()}
        for what, found in (("workflow", metrics), ("reward_by_role", rewards))
    }


def _print(options: argparse.Namespace, result: dict[str, Any]) -> None:
    console = Console(highlight=False)
    console.print(
        Text(visible(f"{result['env']} · {result['model']}"), style="bold"),
        Text(
            f"{result['tasks']} tasks x {options.samples} episodes, temperature {options.temperature:g}, "
            + visible(f"{result['split']} split" if result["split"] else "the environment has no splits"),
            style="bright_black",
        ),
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bright_black")
    for heading in ("", "value", "95% CI over tasks"):
        table.add_column(heading)
    for size, estimate in result["pass"].items():
        low, high = estimate["low"], estimate["high"]
        table.add_row(f"pass@{size}", f"{estimate['value']:.3f}", f"{low:.3f} – {high:.3f}", style="bold")
    for name, key in (("mean reward", "mean_reward"), ("mean turns", "mean_turns")):
        table.add_row(name, "–" if result[key] is None else f"{result[key]:.3f}", "")
    for name, value in result.get("reward_by_role", {}).items():
        table.add_row(Text(visible(f"mean reward ({name})")), f"{value:.3f}", "")
    for name, value in result.get("workflow", {}).items():
        table.add_row(Text(visible(name)), f"{value:.3f}", "")
    console.print(table)
    reasons = ", ".join(f"{reason or 'none'} {count}" for reason, count in result["stop_reasons"].items())
    console.print(Text(f"stop reasons: {visible(reasons)}"))
    if result["faults"] or result["dropped"]:
        faults = ", ".join(f"{kind} {count}" for kind, count in result["faults"].items()) or "none"
        console.print(
            Text(
                f"faults: {visible(faults)}; {result['retries']} retries, {result['dropped']} episodes dropped "
                "(counted as failures)",
                style="yellow",
            )
        )
    else:
        console.print(Text("faults: none; 0 episodes dropped"))
    speed = f"{result['tokens_per_second']:.0f} tokens/s, " if result["sampled_tokens"] else ""
    console.print(Text(f"speed: {speed}{result['seconds']:.1f} s", style="bright_black"))
    if result["output"]:
        console.print(Text(f"episodes: {result['output']}", style="bright_black"))


class _Parser(argparse.ArgumentParser):
    """Reports invalid arguments as other commands do."""

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message}; see `{self.prog} --help`")


def _parse(argv: list[str]) -> argparse.Namespace:
    """Parse the arguments; the options of ``--run`` are defaults of the others.

    Raises:
        CommandError: Options are unknown, which are all reported, one is missing, or a value is invalid.
    """
    parser, argv = _parser(), _own_words(argv)
    known = set(re.findall(r"--[\w.-]+", parser.format_help()))
    problems = []
    for word in argv:
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if name in _OTHER_NAMES or (name.startswith("--") and not any(option.startswith(name) for option in known)):
            near = [_OTHER_NAMES[name]] if name in _OTHER_NAMES else difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"see `{parser.prog} --help`"
            problems.append(f"{name}{equals}{value} is not an option; {hint}")
    if problems:
        raise CommandError("invalid options:\n" + "\n".join(f"  - {problem}" for problem in problems))
    options = parser.parse_args(argv)
    if options.run is not None:
        parser.set_defaults(**settings_of_run(options.run))
        options = parser.parse_args(argv)
        if options.url is not None:
            options.dtype = None  # the endpoint's
    if options.env is None:
        objects = (
            f" (the environment of {options.run} was passed to trainers.train as an object)" if options.run else ""
        )
        parser.error(f"ENV is missing{objects}; `rllm-gym list` shows the environments")
    if options.model is None:
        unfinished = f": {options.run} has no final model, e.g. use {options.run}/best_model" if options.run else ""
        parser.error(f"--model.path is missing{unfinished}")
    if options.resume and options.output is None:
        parser.error("--resume needs --output, the file to continue")
    return options


def _own_words(argv: list[str]) -> list[str]:
    """Return the arguments with this command's options in place of those of rllm-gym train."""
    own: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        section, _, argument = name.removeprefix("--env.").replace("-", "_").partition(".")
        if name.startswith("--env.") and section in ("kwargs", "agent_kwargs") and argument:
            if not equals:  # a switch without a value is true
                value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
            own += [f"--{section[:-1].replace('_', '-')}", f"{argument}={value}"]
        else:
            own.append(_TRAIN_NAMES.get(name.replace("_", "-"), name) + equals + value)
    return own

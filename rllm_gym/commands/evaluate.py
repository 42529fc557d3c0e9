"""``rllm-gym eval``: evaluate models, alone or in several roles: success rates with confidence intervals.

Options are read in :mod:`rllm_gym.commands.eval_options`, results made in :mod:`rllm_gym.commands.eval_results`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllm_gym.commands.endpoint import ENDPOINT_OPTIONS, MODEL_OPTIONS, check_endpoint_arguments
from rllm_gym.commands.env_arguments import creation_errors, import_module, parse_kwargs
from rllm_gym.commands.errors import CommandError
from rllm_gym.commands.eval_files import episodes_to_resume, manifest_of
from rllm_gym.commands.eval_options import file_names, read_options
from rllm_gym.commands.eval_results import Result, comparison, measured, of_agents, print_report, save_results
from rllm_gym.commands.model_sampler import check_model, sampler_of
from rllm_gym.commands.workflow import make_agent, roles_of, sync_adapters
from rllm_gym.core import Episode, TextEnv, stream_seed
from rllm_gym.data.contamination import contamination_notice
from rllm_gym.engine import (
    AgentExecutionEngine,
    AgentWorkflowEngine,
    EnvironmentUnavailable,
    EpisodeSpec,
    Workflow,
    save_episodes,
    write_manifest,
)
from rllm_gym.engine.env_creation import is_environment, is_game, make_env_with_split
from rllm_gym.samplers import Sampler, SamplerError, SamplingParams

Engine = AgentExecutionEngine | AgentWorkflowEngine

_EXIT_TERMINATED, _EXIT_INTERRUPTED = 143, 130
# Options that decide which sampler is created.
_OF_SAMPLER = ("model", "url", *MODEL_OPTIONS, *ENDPOINT_OPTIONS, "parallel")


def main(argv: list[str]) -> int:
    cells = read_options(argv)
    call = cells[0]
    folder = _output_folder(call, len(cells))
    names = file_names(cells)
    evaluations = [
        Evaluation.prepare(cell, call.output if folder is None else folder / name)
        for cell, name in zip(cells, names, strict=True)
    ]
    for model in dict.fromkeys(cell.model for cell in cells if cell.url is None):
        check_model(model)
    for evaluation in evaluations if call.resume else ():
        evaluation.resume(needed=folder is None)
    complete, failure = False, None
    try:
        complete = asyncio.run(_run(evaluations))
    except (KeyboardInterrupt, CommandError) as error:
        failure = error
    finally:
        # Also saves the episodes of an interrupted evaluation.
        for evaluation in evaluations:
            evaluation.save()
    envs = {cell.env_label: index for index, cell in reversed(list(enumerate(cells)))}
    in_order = sorted(evaluations, key=lambda evaluation: envs[evaluation.options.env_label])
    results = [evaluation.result() for evaluation in in_order if evaluation.episodes or complete]
    output = None if call.output is None else str(call.output)
    report = {"results": results, "comparisons": _comparisons(evaluations), "complete": complete, "output": output}
    if folder is not None and results:
        save_results(folder, report)
    if isinstance(failure, CommandError):
        raise failure
    if call.json:
        print(json.dumps(report, indent=2))
    elif results:
        print_report(report)
    if not complete:
        done, all_of_them = (sum(map(len, each)) for each in zip(*((e.episodes, e.specs) for e in evaluations)))
        how = "continue with the same command and --resume" if call.output else "nothing was saved (no --output)"
        print(f"stopped after {done} of {all_of_them} episodes; {how}", file=sys.stderr)
        return _EXIT_TERMINATED if failure is None else _EXIT_INTERRUPTED
    for evaluation in evaluations:
        evaluation.check_success()
    return 0


@dataclass
class Evaluation:
    """The evaluation of one model on one environment.

    Attributes:
        options: Its options.
        agent: Creates the agent or the workflow.
        kwargs: Keyword arguments of the environment.
        params: Sampling parameters.
        specs: All episodes.
        path: File of the episodes, if they are saved.
        episodes: Those that are finished.
        faults, retries, seconds, new_tokens: Counters of the engines of this call.
        resumed: Number of episodes of an earlier call.
    """

    options: argparse.Namespace
    agent: Callable[[], Any]
    kwargs: dict[str, Any]
    params: SamplingParams
    specs: list[EpisodeSpec]
    path: Path | None
    episodes: list[Episode] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    seconds: float = 0.0
    new_tokens: int = 0
    resumed: int = 0

    @classmethod
    def prepare(cls, options: argparse.Namespace, path: Path | None) -> Evaluation:
        """Check the options and create the environment once, so that mistakes are found before anything runs."""
        if options.samples > 1 and options.temperature == 0:
            raise CommandError(
                f"--samples {options.samples} requires --sampling.temperature > 0: at temperature 0 all episodes of a "
                "task are equal"
            )
        check_endpoint_arguments(options)
        if module := options.env.rpartition(":")[0]:
            import_module(module)
        agent = make_agent(options)
        kwargs, tasks, reply_tokens = _environment(options, workflow=isinstance(agent(), Workflow))
        try:
            params = SamplingParams(
                temperature=options.temperature,
                top_p=options.top_p,
                top_k=options.top_k,
                max_tokens=reply_tokens if options.max_tokens is None else options.max_tokens,
            )
        except ValueError as error:
            raise CommandError(str(error)) from error
        return cls(options, agent, kwargs, params, _specs(options, tasks), path)

    def resume(self, *, needed: bool) -> None:
        """Take over the episodes of an earlier call; a missing file is an error if one is ``needed``.

        Raises:
            CommandError: Other options were used, or these leave out episodes, which would be lost.
        """
        assert self.path is not None
        if not needed and not manifest_of(self.path).exists():
            return
        known = {spec.episode_id for spec in self.specs}
        self.episodes = episodes_to_resume(self.path, self._config())
        if others := sum(episode.episode_id not in known for episode in self.episodes):
            raise CommandError(
                f"--resume: {self.path} has {others} episodes that --limit {self.options.limit} and --samples "
                f"{self.options.samples} leave out; use at least as many tasks and samples, or another --output"
            )
        self.resumed = len(self.episodes)
        if self.episodes:
            save_episodes(self.path, self.episodes)

    async def run(self, sampler: Sampler) -> None:
        """Run what is left. A finished episode is appended to the file, which a process that is killed leaves."""
        done = {episode.episode_id for episode in self.episodes}
        await sync_adapters(self.options, sampler)
        for seed in self.options.seed:
            left = [spec for spec in self.specs if _seed_of(spec) == seed and spec.episode_id not in done]
            if not left:
                continue
            engine = self._engine(sampler, seed)
            try:
                async with engine:
                    async for episode in engine.stream(left):
                        if self.path is not None:
                            if not self.episodes:
                                # Replaces those of an earlier evaluation, before its manifest: episodes never have the
                                # manifest of others, whenever the process is killed.
                                save_episodes(self.path, [])
                                self._write_manifest([episode])
                            save_episodes(self.path, [episode], append=True)
                        self.episodes.append(episode)
            except (SamplerError, EnvironmentUnavailable) as error:
                raise CommandError(f"{self.options.env}: {error}") from error
            finally:
                self.faults += engine.stats.faults
                self.retries += engine.stats.retries
                self.seconds += engine.stats.wall
                self.new_tokens += engine.stats.sampled_tokens

    def save(self) -> None:
        """Write the episodes in the order of their tasks, if there are new ones."""
        if self.path is not None and len(self.episodes) > self.resumed:
            place = {spec.episode_id: index for index, spec in enumerate(self.specs)}
            save_episodes(self.path, sorted(self.episodes, key=lambda episode: place[episode.episode_id]))
            self._write_manifest(self.episodes)

    def result(self) -> Result:
        """Return everything that is printed, as JSON types."""
        options, seeds = self.options, self.options.seed
        attempts = options.samples * len(seeds)
        found: Result = {
            "env": options.env_label,
            "model": options.model_label,
            "split": self.kwargs.get("split"),
            "samples": options.samples,
            "seeds": seeds,
            "temperature": options.temperature,
            **measured(self.episodes, attempts=attempts, price=options.price),
        }
        if len(seeds) > 1:
            found["pass_at_1_by_seed"] = {
                str(seed): measured(own, attempts=1, price=None)["pass"]["1"]["value"]
                for seed in seeds
                if (own := [one for one in self.episodes if _seed_of(one) == seed]) and any(e.trainable for e in own)
            }
        if isinstance(self.agent(), Workflow):
            found |= of_agents(self.episodes)
        return found | {
            "faults": dict(self.faults),
            "retries": self.retries,
            "seconds": self.seconds,
            "tokens_per_second": self.new_tokens / self.seconds if self.seconds else 0.0,
            "contamination": contamination_notice(options.env, self.kwargs),
            "output": None if self.path is None else str(self.path),
        }

    def check_success(self) -> None:
        """Raise if all episodes were dropped."""
        if self.episodes and not any(episode.trainable for episode in self.episodes):
            first = self.episodes[0]
            why = ": ".join(filter(None, [first.stop_reason.value, first.fault]))
            raise CommandError(
                f"{self.options.env}: no success rate: all {len(self.episodes)} episodes were dropped; the first one: "
                f"{why}"
            )

    def _engine(self, sampler: Sampler, seed: int) -> Engine:
        options = self.options
        common: dict[str, Any] = {
            "env": options.env,
            "sampler": sampler,
            "env_kwargs": self.kwargs,
            "sampling_params": self.params,
            "n_parallel": options.parallel,
            "workers": options.workers,
            "max_turns": options.max_turns,
            "max_response_tokens": options.max_response_tokens,
            "max_context_tokens": options.context_length,
            **({} if options.deadlines is None else {"deadlines": options.deadlines}),
            "seed": seed,
            "progress": sys.stderr.isatty() and not options.json,
        }
        try:
            if isinstance(self.agent(), Workflow):
                return AgentWorkflowEngine(self.agent, roles=roles_of(options), **common)
            return AgentExecutionEngine(agent=self.agent, **common)
        except ValueError as error:
            raise CommandError(str(error)) from error

    def _config(self) -> dict[str, Any]:
        """Return the options for the manifest."""
        config = {name: str(value) if isinstance(value, Path) else value for name, value in vars(self.options).items()}
        return {**config, "env_kwargs": self.kwargs}

    def _write_manifest(self, episodes: list[Episode]) -> None:
        assert self.path is not None
        tiers = {str(episode.info.get("sandbox_tier", "none")) for episode in episodes}
        write_manifest(
            manifest_of(self.path),
            config=self._config(),
            seeds={f"eval {number}": seed for number, seed in enumerate(self.options.seed)},
            sandbox_tier=", ".join(sorted(tiers - {"none"})) or "none",
        )


# Private functions


def _output_folder(call: argparse.Namespace, count: int) -> Path | None:
    """Create the folder of ``--output`` and return it; ``None`` if it is one file of episodes, or not given."""
    path = call.output
    if path is None:
        if call.resume:
            raise CommandError("--resume needs --output, the file or the folder to continue")
        return None
    if path.suffix == ".jsonl":
        if count > 1:
            raise CommandError(f"--output {path} is one file, but there are {count} evaluations; give a folder")
        if path.is_dir():
            raise CommandError(f"--output {path} is a directory; expected a file, e.g. episodes.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        return None
    if path.exists() and not path.is_dir():
        raise CommandError(f"--output {path} is not a directory; give a folder, or a .jsonl file for the episodes")
    path.mkdir(parents=True, exist_ok=True)
    return Path(path)


def _environment(options: argparse.Namespace, *, workflow: bool) -> tuple[dict[str, Any], int | None, int]:
    """Return the environment's arguments, its number of tasks (``None`` if it has no task set), and the maximum length
    of a reply that it asks for.
    """
    kwargs = {**options.run_kwargs, **parse_kwargs(options.kwarg)}
    split = kwargs.get("split", options.split or "test")
    if options.split not in (None, split):
        raise CommandError(f"--split {options.split} conflicts with --kwarg split={split}")
    if not workflow and is_game(options.env) and not is_environment(options.env):
        raise CommandError(
            f"{options.env} is a game of several agents: --agent must be a workflow, e.g. "
            "rllm_gym.engine.workflows:SelfPlay"
        )
    with creation_errors(options.env):
        env, kwargs = make_env_with_split(options.env, kwargs, split, game=workflow)
    try:
        if options.split is not None and "split" not in kwargs:
            raise CommandError(f"--split {options.split}: {options.env} has no splits (no parameter `split`)")
        limit = None if workflow else getattr(env.unwrapped, "max_turns", None)
        if options.max_turns is not None and isinstance(limit, int) and options.max_turns > limit:
            raise CommandError(
                f"--max-turns {options.max_turns} has no effect: episodes of {options.env} end after {limit} turns; "
                "leave it out, or give the environment its own limit where it has such an argument: --kwarg max_turns=…"
            )
        tasks = getattr(env.unwrapped, "tasks", None)
        if tasks is None and options.shuffle:
            raise CommandError(f"--shuffle has no effect: {options.env} has no task set, its seeds select the tasks")
        reply_tokens = getattr(env.unwrapped, "reply_tokens", TextEnv.reply_tokens)
        return kwargs, None if tasks is None else len(tasks), reply_tokens
    finally:
        env.close()


def _specs(options: argparse.Namespace, tasks: int | None) -> list[EpisodeSpec]:
    """Return the episodes of each task and seed, each with its own dynamics seed."""
    order: Sequence[int] = range(options.limit if tasks is None else tasks)
    if options.shuffle:
        order = list(order)
        random.Random(stream_seed("eval tasks", options.seed[0])).shuffle(order)
    return [
        EpisodeSpec(
            # Without a task set the seed alone selects the task, and all episodes of one task share it.
            task=None if tasks is None else index,
            seed=stream_seed("eval", seed, index, *([] if tasks is None else [member])) % 2**32,
            group_id=f"{seed}/{index}" if tasks is None else str(index),
            episode_id=f"{seed}/{index}#{member}",
        )
        for index in order[: options.limit]  # so that a higher limit adds tasks
        for seed in options.seed
        for member in range(options.samples)
    ]


def _seed_of(episode: EpisodeSpec | Episode) -> int:
    return int(episode.episode_id.partition("/")[0])


async def _run(evaluations: list[Evaluation]) -> bool:
    """Run the evaluations one after the other; return whether all are complete: SIGTERM stops them."""
    stopped = False
    task, loop = asyncio.current_task(), asyncio.get_running_loop()

    def stop() -> None:
        nonlocal stopped
        stopped = True
        assert task is not None
        task.cancel()

    if threading.current_thread() is threading.main_thread():
        loop.add_signal_handler(signal.SIGTERM, stop)
    sampler: Sampler | None = None
    created_with: list[Any] = []
    try:
        for evaluation in evaluations:
            wanted = [getattr(evaluation.options, name) for name in _OF_SAMPLER]
            if sampler is None or wanted != created_with:
                if sampler is not None:
                    await sampler.close()
                    sampler = None
                sampler, created_with = sampler_of(evaluation.options), wanted
            await evaluation.run(sampler)
    except asyncio.CancelledError:
        if not stopped:
            raise
    finally:
        if sampler is not None:
            await sampler.close()
    return not stopped


def _comparisons(evaluations: list[Evaluation]) -> list[Result]:
    """Compare each model with the first one on each environment."""
    first = evaluations[0].options.model_label
    baselines = {one.options.env_label: one.episodes for one in evaluations if one.options.model_label == first}
    found = []
    for one in evaluations:
        env, model = one.options.env_label, one.options.model_label
        if model != first and (tests := comparison(baselines[env], one.episodes)):
            found.append({"env": env, "model": model, "baseline": first, **tests})
    return found

"""TRL trains on any environment: ``rollout_func`` and ``environment_factory`` for its ``GRPOTrainer``.

``rollout_func`` plays whole episodes with this project's engine, agents and token truth; ``environment_factory`` gives
TRL an object whose one tool is the environment's ``step``, for models that were trained to call tools. Written against
TRL 1.16, whose two arguments of these names are experimental.
"""

from __future__ import annotations

import importlib
import json
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from gymnasium.envs.registration import EnvSpec

from rllm_gym.agents import BaseAgent, default_agent
from rllm_gym.chat.renderer import ChatRenderer
from rllm_gym.core import EnvironmentFault, Episode, Task, stream_seed
from rllm_gym.engine import AgentExecutionEngine, Deadlines, EngineStats, EnvironmentUnavailable, EpisodeSpec
from rllm_gym.engine.host import build, resolve
from rllm_gym.engine.slot import Slot
from rllm_gym.samplers.protocol import Sampler, SamplingParams, WeightUpdate
from rllm_gym.workers import BackgroundLoop, WorkerPool

Env = str | EnvSpec | Callable[..., Any]
Tasks = int | Iterable[int | str]

_MOST_TASKS = 1000


def rollout_func(env: Env, **arguments: Any) -> Rollouts:
    """The ``rollout_func`` of a ``GRPOTrainer`` that plays ``env``; see :class:`Rollouts` for the arguments.

    >>> rollout = rollout_func("rllm/FrozenLake-v0")                                            # doctest: +SKIP
    >>> GRPOTrainer(model, reward_funcs=rollout.reward, rollout_func=rollout,                   # doctest: +SKIP
    ...             train_dataset=rollout.dataset(), args=GRPOConfig(...)).train()
    """
    return Rollouts(env, **arguments)


def environment_factory(env: Env, **arguments: Any) -> EnvironmentFactory:
    """The ``environment_factory`` of a ``GRPOTrainer``; see :class:`EnvironmentFactory` for the arguments.

    >>> factory = environment_factory("rllm/FrozenLake-v0")                                     # doctest: +SKIP
    >>> GRPOTrainer(model, environment_factory=factory, train_dataset=factory.dataset(),        # doctest: +SKIP
    ...             args=GRPOConfig(...)).train()
    """
    return EnvironmentFactory(env, **arguments)


class Rollouts:
    """Plays one episode for each prompt TRL asks for, and gives TRL the very ids that were sampled.

    A prompt names a task; make them with :meth:`dataset`. The repeats of a prompt share the task, and each has its own
    dynamics seed. ``env_mask`` is 1 on sampled tokens alone. An episode that tells nothing about the model (the world
    or the agent broke, the prompt did not fit) has the reward ``None``, which TRL leaves out of the group's mean and
    gives no advantage; its tokens are masked.

    Without ``sampler`` the model that TRL trains is sampled from in this process, one decoding loop for all turns of
    all episodes. With one, the present weights are pushed to it whenever TRL has taken a step.

    Keep it open with ``with``, or :meth:`close` it: environments, workers and the decoding thread end then. What is
    left open ends with the program, worker processes too, but without the environments' own ``close``.

    Args:
        env: A Gymnasium id, an ``EnvSpec``, or something callable that returns an environment.
        env_kwargs: Keyword arguments of the environment.
        agent: An agent class or factory; ``None`` picks one by the environment's family. It must not rewrite its
            history: TRL takes one sequence an episode.
        sampler: One of ``rllm_gym.samplers`` that serves this model and returns tokens; it stays yours to close.
        max_reply_tokens: Longest reply of one turn; ``None`` for TRL's ``max_completion_length``, which is the most
            that is sampled in all turns of an episode together. What the environment says comes on top of that, and
            ``max_context_tokens`` bounds both.
        n_parallel, workers, memory_mb, max_turns, max_prompt_tokens, max_context_tokens, deadlines, retries: As
            :class:`~rllm_gym.engine.AgentExecutionEngine`.
        seed: Root of the seeds of all episodes.

    Attributes:
        episodes: Those of the latest batch, in TRL's order.
    """

    def __init__(
        self,
        env: Env,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        agent: Callable[[], BaseAgent] | None = None,
        sampler: Sampler | None = None,
        max_reply_tokens: int | None = None,
        n_parallel: int = 64,
        workers: Literal["thread", "process"] = "thread",
        memory_mb: int | None = None,
        max_turns: int | None = None,
        max_prompt_tokens: int | None = None,
        max_context_tokens: int | None = None,
        deadlines: Deadlines | None = None,
        retries: int = 2,
        seed: int = 0,
    ) -> None:
        if max_reply_tokens is not None and max_reply_tokens < 1:
            raise ValueError(f"max_reply_tokens={max_reply_tokens!r} must be at least 1, or None")
        if sampler is not None and not sampler.returns_tokens:
            raise ValueError(
                f"{type(sampler).__name__} returns no token ids and log-probs, and TRL trains on those: use the torch "
                "or the vLLM sampler"
            )
        self._source = resolve(env)
        self._env_kwargs = dict(env_kwargs or {})
        self._settings: dict[str, Any] = {
            "env_kwargs": self._env_kwargs,
            "agent": agent,
            "n_parallel": n_parallel,
            "workers": workers,
            "memory_mb": memory_mb,
            "max_turns": max_turns,
            "max_prompt_tokens": max_prompt_tokens,
            "max_context_tokens": max_context_tokens,
            "deadlines": deadlines,
            "retries": retries,
        }
        self._seed = seed
        self._given_sampler = sampler
        self._max_reply_tokens = max_reply_tokens
        self._play: _Play | None = None
        self.episodes: list[Episode] = []

    def dataset(self, tasks: Tasks | None = None) -> Any:
        """A ``datasets.Dataset`` for ``train_dataset``: one prompt a task.

        Args:
            tasks: How many of the environment's tasks, from the first; or which, by index or id.
                ``None``: all, at most 1000.

        Raises:
            ModuleNotFoundError: ``pip install 'rllm-gym[trl]'``.
            TaskError: There is no such task.
        """
        rows = [
            # TRL hands the messages of the prompt to a rollout_func, and nothing else of the row.
            {"prompt": [{"role": "user", "content": task.content, "task_id": task.task_id}], "task_id": task.task_id}
            for task in _tasks(self._source, self._env_kwargs, tasks)
        ]
        return _dataset(rows)

    def reward(self, env_reward: Sequence[float | None], log_metric: Any = None, **columns: Any) -> list[float | None]:
        """The reward function for ``reward_funcs``: what the environments gave, ``None`` for an episode that counts
        for nothing. Also logs the share of solved episodes, of those left out, and the turns."""
        if log_metric is not None:
            success, turns = columns["env_success"], columns["env_turns"]
            played = [index for index, reward in enumerate(env_reward) if reward is not None]
            if played:
                log_metric("env/success", sum(success[index] for index in played) / len(played))
                log_metric("env/turns", sum(turns[index] for index in played) / len(played))
            log_metric("env/left_out", 1 - len(played) / len(env_reward))
        return list(env_reward)

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """One episode a prompt. Called by TRL.

        Raises:
            ValueError: A prompt names no task, the trainer wants something that would have no effect here, or an
                agent rewrote its history.
            EnvironmentUnavailable: No environment could be made at all.
        """
        training = bool(trainer.model.training)
        try:
            if self._play is None or self._play.trainer() is not trainer:
                self.close()
                self._play = _Play(trainer, self._source, self._given_sampler, self._max_reply_tokens, self._settings)
            batch = self._play.batch(trainer, "train" if training else "evaluation")
            specs = [
                EpisodeSpec(_task_of(prompt), stream_seed("trl", self._seed, *batch, position) % 2**32)
                for position, prompt in enumerate(prompts)
            ]
            self.episodes = self._play.run(specs, int(trainer.state.global_step))
        finally:
            trainer.model.train(training)  # sampling puts the model in evaluation mode
        eos = self._play.tokenizer.eos_token_id
        samples = [_sample(episode, eos if eos is not None else 0) for episode in self.episodes]
        kept = [episode.trainable for episode in self.episodes]
        return {
            "prompt_ids": [sample[0] for sample in samples],
            "completion_ids": [sample[1] for sample in samples],
            "logprobs": [sample[2] for sample in samples],
            "env_mask": [sample[3] for sample in samples],
            "env_reward": [e.reward if keep else None for e, keep in zip(self.episodes, kept, strict=True)],
            "env_success": [episode.success for episode in self.episodes],
            "env_turns": [episode.num_turns for episode in self.episodes],
        }

    @property
    def stats(self) -> EngineStats:
        """Episodes, faults by kind and times so far, with the present trainer."""
        return self._play.engine.stats if self._play is not None else EngineStats()

    def close(self) -> None:
        """Close environments, workers and the decoding thread. Safe to call twice; a further call opens them anew."""
        play, self._play = self._play, None
        if play is not None:
            play.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Play:
    """What one trainer's rollouts need: a loop, an engine kept open on it, and a sampler with the present weights."""

    def __init__(
        self,
        trainer: Any,
        source: EnvSpec | Callable[..., Any],
        sampler: Sampler | None,
        max_reply_tokens: int | None,
        settings: Mapping[str, Any],
    ) -> None:
        _refuse(trainer, embedded=sampler is None)
        self.trainer = weakref.ref(trainer)
        processor = trainer.processing_class
        self.tokenizer = getattr(processor, "tokenizer", processor)
        self._embedded = sampler is None
        self._model = trainer.accelerator.unwrap_model(trainer.model)
        self._pushed: int | None = None
        self._batches: Counter[tuple[str | int, ...]] = Counter()
        if sampler is None:
            from rllm_gym.samplers import TorchSampler

            sampler = TorchSampler(self._model, self.tokenizer, max_batch=settings["n_parallel"])
        self._sampler = sampler
        self.engine = AgentExecutionEngine(
            source,
            sampler=sampler,
            renderer=ChatRenderer(
                self.tokenizer, chat_template=trainer.chat_template, template_kwargs=trainer.chat_template_kwargs
            ),
            sampling_params=SamplingParams(
                temperature=trainer.temperature,
                top_p=trainer.top_p,
                top_k=trainer.top_k or 0,
                max_tokens=max_reply_tokens or trainer.max_completion_length,
            ),
            max_response_tokens=trainer.max_completion_length,
            **settings,
        )
        # The engine's workers and the sampler's futures belong to one loop, whatever thread TRL calls from.
        self._loop = BackgroundLoop("trl-rollouts")
        self._loop.run(self.engine.__aenter__())

    def batch(self, trainer: Any, mode: str) -> tuple[str | int, ...]:
        """Names this batch: the same in a run that was resumed, another for each process."""
        moment = mode, int(trainer.state.global_step), int(trainer.accelerator.process_index)
        self._batches = Counter({moment: self._batches[moment] + 1})  # those of earlier steps do not come again
        return (*moment, self._batches[moment])

    def run(self, specs: Sequence[EpisodeSpec], step: int) -> list[Episode]:
        return self._loop.run(self._run(specs, step))

    async def _run(self, specs: Sequence[EpisodeSpec], step: int) -> list[Episode]:
        if not self._embedded and self._pushed != step:
            await self._sampler.push(_weights(self._model))
            self._pushed = step
        try:
            return await self.engine.run(specs)
        finally:
            if self._embedded:
                # Nothing kept outlives the weights it was computed with; and when a push is done the decoding thread
                # rests, and leaves the model to the trainer.
                await self._sampler.push(WeightUpdate((), kind="shared"))

    def close(self) -> None:
        try:
            self._loop.run(self.engine.aclose())
            if self._embedded:
                self._loop.run(self._sampler.close())
        finally:
            self._loop.close()


def _refuse(trainer: Any, *, embedded: bool) -> None:
    """Raise for every setting of TRL's that a rollout would pass over in silence."""
    if trainer.use_vllm:
        raise ValueError(
            "use_vllm=True starts a vLLM that these rollouts would not use; leave it out and give "
            "rollout_func(..., sampler=) one of rllm_gym.samplers, such as its vLLM sampler"
        )
    unused = {
        "min_p": (trainer.min_p, (None, 0.0)),
        "repetition_penalty": (trainer.repetition_penalty, (None, 1.0)),
        "generation_kwargs": (trainer.args.generation_kwargs, (None, {})),
        "use_transformers_continuous_batching": (trainer.use_transformers_continuous_batching, (False,)),
        "tools": (trainer.tools, (None, [])),
    }
    for name, (value, without_effect) in unused.items():
        if value not in without_effect:
            raise ValueError(f"{name}={value!r} has no effect on these rollouts; leave it out")
    if embedded and (trainer.is_fsdp_enabled or getattr(trainer.args, "deepspeed", None)):
        raise ValueError(
            "the weights are spread over several processes (FSDP, DeepSpeed), so the model cannot be sampled from "
            "where it is trained; train with plain data parallelism"
        )


def _weights(model: Any) -> WeightUpdate:
    if not hasattr(model, "peft_config"):
        return WeightUpdate([(name, tensor.detach()) for name, tensor in model.state_dict().items()], kind="full")
    from peft import get_peft_model_state_dict

    name = model.active_adapter
    adapter = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    settings = model.peft_config[name].to_dict()
    return WeightUpdate([(key, tensor.detach()) for key, tensor in adapter.items()], "lora", settings)


def _task_of(prompt: Any) -> str:
    last = prompt[-1] if isinstance(prompt, list) and prompt else None
    task_id = last.get("task_id") if isinstance(last, dict) else None
    if not isinstance(task_id, str):
        raise ValueError(
            f"this prompt names no task: {prompt!r:.200}; make the dataset with rollout.dataset(), whose last message "
            "has a task_id beside its content"
        )
    return task_id


def _sample(episode: Episode, filler: int) -> tuple[list[int], list[int], list[float], list[int]]:
    """Prompt ids, completion ids, log-probs and mask of one episode; one masked token where there is nothing."""
    nothing = [filler], [filler], [0.0], [0]
    if not episode.trainable or not episode.num_turns:
        return nothing
    sequences = episode.trajectories[0].branches()
    if len(sequences) != 1:
        raise ValueError(
            f"the agent rewrote its history, so that episode {episode.episode_id} of task {episode.task_id!r} is "
            f"{len(sequences)} sequences, and TRL takes one; use an agent that only appends (history='full', "
            "keep_thoughts=True)"
        )
    (sequence,) = sequences
    begin = sequence.mask.index(1)
    return (
        list(sequence.ids[:begin]),
        list(sequence.ids[begin:]),
        list(sequence.logprobs[begin:]),
        list(sequence.mask[begin:]),
    )


# The model calls a tool ------------------------------------------------------------------------------------------


class EnvironmentFactory:
    """Makes :class:`ToolEnvironment` for TRL, one for each rollout that runs at a time; TRL keeps and reuses them.

    The model acts by calling the tool ``act``; a reply without a call ends TRL's rollout. An environment that breaks
    begins no reward: ``get_reward`` is ``None``, which TRL leaves out. Seeds: each rollout has its own dynamics seed,
    derived from ``seed``, the task and how many rollouts its environment has played.

    TRL never closes environments. Keep the factory open with ``with``, or :meth:`close` it; what is left open ends with
    the program, worker processes too, but without the environments' own ``close``.

    Args:
        env: A Gymnasium id, an ``EnvSpec``, or something callable that returns an environment.
        env_kwargs: Keyword arguments of the environment.
        workers: ``"thread"``, or ``"process"``, which a hang or a crash cannot outlive.
        deadlines: Seconds for each phase; ``episode`` is TRL's affair.
        retries: Times a broken ``reset`` is tried again on a fresh environment.
        seed: Root of the seeds.
    """

    def __init__(
        self,
        env: Env,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        workers: Literal["thread", "process"] = "thread",
        deadlines: Deadlines | None = None,
        retries: int = 2,
        seed: int = 0,
    ) -> None:
        if retries < 0:
            raise ValueError(f"retries={retries!r} must be 0 or more")
        self._source = resolve(env)
        self.env_id = self._source.id if isinstance(self._source, EnvSpec) else ""
        self._env_kwargs = dict(env_kwargs or {})
        self._workers = workers
        self._deadlines = deadlines or Deadlines()
        self.retries = retries
        self.seed = seed
        self.stats = EngineStats()
        self.made = threading.Event()
        self._count = 0
        self._home: _Home | None = None

    def __call__(self) -> ToolEnvironment:
        self._count += 1
        return ToolEnvironment(self, self._count)

    def dataset(self, tasks: Tasks | None = None, *, system_prompt: str | None = None) -> Any:
        """A ``datasets.Dataset`` for ``train_dataset``. The first observation becomes part of the prompt in TRL.

        Args:
            tasks: As :meth:`Rollouts.dataset`.
            system_prompt: ``None`` takes the one of the family's agent, ``""`` none.
        """
        if system_prompt is None:
            system_prompt = str(getattr(default_agent(self.env_id), "system_prompt", ""))
        head = [{"role": "system", "content": system_prompt}] if system_prompt else []
        rows = [
            {"prompt": [*head, {"role": "user", "content": ""}], "task_id": task.task_id}
            for task in _tasks(self._source, self._env_kwargs, tasks)
        ]
        return _dataset(rows)

    def slot(self) -> tuple[Slot, BackgroundLoop]:
        """A place for one environment, and the loop it belongs to."""
        if self._home is None:
            self._home = _Home(self._workers, self.env_id)
        home = self._home
        slot = Slot(
            home.pool,
            self._source,
            self._env_kwargs,
            self._deadlines,
            reuse=True,
            made=self.made,
            stats=self.stats,
        )
        home.slots.append(slot)
        return slot, home.loop

    def close(self) -> None:
        """Close all environments and end their workers. Safe to call twice; a further rollout opens new ones."""
        home, self._home = self._home, None
        if home is not None:
            home.close()

    def stands(self, slot: Slot) -> bool:
        """Whether the place has not been closed since."""
        return self._home is not None and slot in self._home.slots

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Home:
    """The workers of a factory's environments and the loop they are spoken to on."""

    def __init__(self, workers: Literal["thread", "process"], env_id: str) -> None:
        self.pool = WorkerPool(
            workers,
            max_workers=1_000_000,  # TRL decides how many environments there are
            name=f"{env_id} environment",
            preload=("rllm_gym.engine.host",) if workers == "process" else (),
        )
        self.loop = BackgroundLoop("trl-environments")
        self.slots: list[Slot] = []

    def close(self) -> None:
        try:
            for slot in self.slots:
                self.loop.run(slot.aclose())  # each within its deadline
        finally:
            self.loop.close()
            self.pool.close()


class ToolEnvironment:
    """One environment as TRL wants it: every public function is a tool, but for ``reset`` and ``get_reward``."""

    def __init__(self, factory: EnvironmentFactory, number: int) -> None:
        self._factory = factory
        self._number = number
        self._resets = 0
        self._slot: Slot | None = None
        self._loop: BackgroundLoop | None = None
        self._reward: float | None = 0.0
        self._over = True

    def reset(self, **row: Any) -> str:
        """Begin an episode with the task of a row of the dataset.

        Args:
            **row: ``task_id`` (or ``task``) names the task, else the seed picks it; ``seed`` sets the dynamics, which
                the repeats of the row then share. Other columns are TRL's and the user's own.

        Returns:
            The first observation, which TRL appends to the prompt, with the environment's tool schemas if it has any.

        Raises:
            TaskError: There is no such task.
            EnvironmentUnavailable: No environment could be made at all.
        """
        factory = self._factory
        task = row.get("task_id", row.get("task"))
        seed = row.get("seed")
        if seed is None:
            name = task if isinstance(task, str | int) else ""
            rank = int(os.environ.get("RANK", "0"))
            seed = stream_seed("trl", factory.seed, name, rank, self._number, self._resets) % 2**32
        self._resets += 1
        self._reward, self._over = 0.0, False
        for attempt in range(factory.retries + 1):
            slot, loop = self._place()
            try:
                observation, info, _ = loop.run(slot.begin(int(seed), None if task is None else {"task": task}))
                break
            except EnvironmentFault as fault:
                self._broke(fault)
                if attempt == factory.retries:
                    if not factory.made.is_set():
                        raise EnvironmentUnavailable(f"no environment could be made: {fault}") from fault
                    return "The environment is not available."
                factory.stats.retries += 1
        self._reward, self._over = 0.0, False
        tools = str(info.get("tools", "[]"))
        if tools == "[]":
            return str(observation)
        return f"{observation}\n\nTools, to be called within the reply given to `act`:\n{tools}"

    def act(self, reply: str) -> str:
        """Give your reply to the environment and learn what happens next.

        Args:
            reply: The whole reply, in the format that the task asks for.

        Returns:
            What the environment answers.
        """
        if self._over:
            return "The episode is over: there is nothing left to do."
        assert self._slot is not None
        assert self._loop is not None
        if not isinstance(reply, str):  # the model wrote the argument
            reply = json.dumps(reply)
        try:
            observation, reward, terminated, truncated, _ = self._loop.run(self._slot.step(reply))
        except EnvironmentFault as fault:
            self._broke(fault)
            return "The environment broke: there is nothing left to do."
        assert self._reward is not None
        self._reward += reward
        self._over = terminated or truncated
        return str(observation)

    def get_reward(self) -> float | None:
        """The sum of the rewards of the episode's steps; ``None`` if the environment broke."""
        return self._reward

    def _place(self) -> tuple[Slot, BackgroundLoop]:
        if self._slot is None or not self._factory.stands(self._slot):
            self._slot, self._loop = self._factory.slot()
        assert self._loop is not None
        return self._slot, self._loop

    def _broke(self, fault: EnvironmentFault) -> None:
        self._factory.stats.faults[fault.kind] += 1
        self._reward, self._over = None, True
        assert self._slot is not None
        assert self._loop is not None
        self._loop.run(self._slot.discard())


# Tasks as a dataset ----------------------------------------------------------------------------------------------


def _tasks(source: EnvSpec | Callable[..., Any], kwargs: Mapping[str, Any], wanted: Tasks | None) -> list[Task]:
    env = build(source, kwargs)
    try:
        tasks = getattr(env.unwrapped, "tasks", None)
        if tasks is None:
            raise ValueError(
                f"{type(env.unwrapped).__name__} has no task set to make a dataset of; derive it from rllm_gym.TextEnv"
            )
        if wanted is None:
            wanted = min(len(tasks), _MOST_TASKS)
        if isinstance(wanted, int):
            if not 1 <= wanted <= len(tasks):
                raise ValueError(f"tasks={wanted!r} must be between 1 and {len(tasks)}, the size of the task set")
            return [tasks[index] for index in range(wanted)]
        found = [tasks.find(task) if isinstance(task, str) else tasks[task] for task in wanted]
    finally:
        env.close()
    if not found:
        raise ValueError("tasks names no task; give at least one")
    return found


def _dataset(rows: list[dict[str, Any]]) -> Any:
    try:
        datasets = importlib.import_module("datasets")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"TRL's datasets need {error.name}: pip install 'rllm-gym[trl]'", name=error.name
        ) from error
    return datasets.Dataset.from_list(rows)

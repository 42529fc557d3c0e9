"""Whole episodes for TRL's ``rollout_func``: the sampled ids, their mask, and the rewards."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from gymnasium.envs.registration import EnvSpec

from rllm_gym.agents import BaseAgent
from rllm_gym.chat.renderer import ChatRenderer
from rllm_gym.core import Episode, stream_seed
from rllm_gym.core.background_loop import BackgroundLoop
from rllm_gym.engine import AgentExecutionEngine, Deadlines, EngineStats, EpisodeSpec
from rllm_gym.integrations.trl.dataset import Tasks, dataset_of, tasks_of
from rllm_gym.runtime.env_building import Env, resolve
from rllm_gym.samplers.protocol import Sampler, SamplingParams, WeightUpdate


class RolloutFunction:
    """Runs one episode for each prompt of TRL, and returns exactly the ids that were sampled.

    A prompt names a task; create prompts with :meth:`dataset`. The repeats of a prompt share the task, and each has its
    own dynamics seed. ``env_mask`` is 1 on sampled tokens alone. An episode without information about the model (the
    environment or the agent failed, the prompt did not fit) has the reward ``None``, which TRL leaves out of the
    group's mean and gives no advantage; its tokens are masked.

    Without ``sampler``, replies are sampled from the model that TRL trains, in this process, with one decoding loop for
    all turns of all episodes. With one, the current weights are loaded into it after each step of TRL.

    Use it with ``with``, or :meth:`close` it: this ends environments, workers and the decoding thread. Otherwise they
    end with the program, worker processes too, but without the environments' own ``close``.

    Args:
        env: A Gymnasium id, an ``EnvSpec``, or a callable that returns an environment.
        env_kwargs: Keyword arguments of the environment.
        agent: An agent class or factory; ``None`` selects one by the environment's family. It must not rewrite its
            history: TRL takes one sequence per episode.
        sampler: A sampler of ``rllm_gym.samplers`` that serves this model and returns tokens; the caller closes it.
        max_reply_tokens: Maximum length of the reply of one turn; ``None`` for TRL's ``max_completion_length``, which
            is the maximum number of tokens sampled in all turns of an episode together. Text of the environment is not
            included, and ``max_context_tokens`` limits both.
        n_parallel, workers, memory_mb, max_turns, max_prompt_tokens, max_context_tokens, deadlines, retries: As
            :class:`~rllm_gym.engine.AgentExecutionEngine`.
        seed: Root of the seeds of all episodes.

    Attributes:
        episodes: The episodes of the latest batch, in TRL's order.
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
            "deadlines": deadlines or Deadlines(),
            "retries": retries,
        }
        self._seed = seed
        self._external_sampler = sampler
        self._max_reply_tokens = max_reply_tokens
        self._session: _RolloutSession | None = None
        self.episodes: list[Episode] = []

    def dataset(self, tasks: Tasks | None = None) -> Any:
        """Return a ``datasets.Dataset`` for ``train_dataset``: one prompt per task.

        Args:
            tasks: How many of the environment's tasks, from the first; or which, by index or id. ``None``: all, at most
                1000.

        Raises:
            ModuleNotFoundError: ``pip install 'rllm-gym[trl]'``.
            TaskError: There is no such task.
        """
        rows = [
            # TRL passes only the messages of the prompt to a rollout_func, nothing else of the row.
            {"prompt": [{"role": "user", "content": task.content, "task_id": task.task_id}], "task_id": task.task_id}
            for task in tasks_of(self._source, self._env_kwargs, tasks)
        ]
        return dataset_of(rows)

    def reward(self, env_reward: Sequence[float | None], log_metric: Any = None, **columns: Any) -> list[float | None]:
        """The reward function for ``reward_funcs``: return the environments' rewards, ``None`` for excluded episodes.

        Also logs the fraction of solved episodes, the fraction of excluded ones, and the number of turns.
        """
        if log_metric is not None:
            success, turns = columns["env_success"], columns["env_turns"]
            valid = [index for index, reward in enumerate(env_reward) if reward is not None]
            if valid:
                log_metric("env/success", sum(success[index] for index in valid) / len(valid))
                log_metric("env/mean_turns", sum(turns[index] for index in valid) / len(valid))
            log_metric("env/dropped_fraction", 1 - len(valid) / len(env_reward))
        return list(env_reward)

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Run one episode per prompt. Called by TRL.

        Raises:
            ValueError: A prompt names no task, the trainer has a setting that would have no effect here, or an agent
                rewrote its history.
            EnvironmentUnavailable: No environment could be created at all.
        """
        training = bool(trainer.model.training)
        try:
            if self._session is None or self._session.trainer() is not trainer:
                self.close()
                self._session = _RolloutSession(
                    trainer, self._source, self._external_sampler, self._max_reply_tokens, self._settings
                )
            batch = self._session.batch(trainer, "train" if training else "evaluation")
            specs = [
                EpisodeSpec(_task_of(prompt), stream_seed("trl", self._seed, *batch, position) % 2**32)
                for position, prompt in enumerate(prompts)
            ]
            self.episodes = self._session.run(specs, int(trainer.state.global_step))
        finally:
            trainer.model.train(training)  # sampling puts the model in evaluation mode
        eos = self._session.tokenizer.eos_token_id
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
        """Episodes, faults by kind and times so far, with the current trainer."""
        return self._session.engine.stats if self._session is not None else EngineStats()

    def close(self) -> None:
        """Close environments, workers and the decoding thread. Safe to call twice; a further call creates new ones."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _RolloutSession:
    """The resources of one trainer's rollouts: a loop, an open engine, and a sampler with the current weights."""

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
        self._synced_step: int | None = None
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
        # The engine's workers and the sampler's futures belong to one loop, whichever thread TRL calls from.
        self._loop = BackgroundLoop("trl-rollouts")
        self._loop.run(self.engine.__aenter__())

    def batch(self, trainer: Any, mode: str) -> tuple[str | int, ...]:
        """Return the name of this batch: the same in a resumed run, different for each process."""
        moment = mode, int(trainer.state.global_step), int(trainer.accelerator.process_index)
        self._batches = Counter({moment: self._batches[moment] + 1})  # names of earlier steps are not used again
        return (*moment, self._batches[moment])

    def run(self, specs: Sequence[EpisodeSpec], step: int) -> list[Episode]:
        return self._loop.run(self._run(specs, step))

    async def _run(self, specs: Sequence[EpisodeSpec], step: int) -> list[Episode]:
        if not self._embedded and self._synced_step != step:
            await self._sampler.sync_weights(_weights(self._model))
            self._synced_step = step
        try:
            return await self.engine.run(specs)
        finally:
            if self._embedded:
                # Clears everything that was computed with old weights; and after a weight sync the decoding thread is
                # idle, and leaves the model to the trainer.
                await self._sampler.sync_weights(WeightUpdate((), kind="shared"))

    def close(self) -> None:
        try:
            self._loop.run(self.engine.aclose())
            if self._embedded:
                self._loop.run(self._sampler.close())
        finally:
            self._loop.close()


def _refuse(trainer: Any, *, embedded: bool) -> None:
    """Raise for every setting of TRL that a rollout would silently ignore."""
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
            "the weights are sharded over several processes (FSDP, DeepSpeed), so the model cannot be sampled from "
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
            f"this prompt names no task: {prompt!r:.200}; create the dataset with rollout.dataset(), whose last "
            "message has a task_id next to its content"
        )
    return task_id


def _sample(episode: Episode, filler: int) -> tuple[list[int], list[int], list[float], list[int]]:
    """Return prompt ids, completion ids, log-probs and mask of one episode; one masked token if there are none."""
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

"""Supervised fine-tuning on demonstrations, short: the replies are learnt, what they answer is not.

A rule in the configuration ends it, measured on validation tasks alone: neither a lucky seed nor a look at the test.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from rllm_gym.chat import ChatRenderer
from rllm_gym.core import stream_seed
from rllm_gym.engine import write_manifest
from trainers.batching import Row, rows_of
from trainers.config import ConfigError, SftConfig, validate_sft
from trainers.curriculum import shuffled
from trainers.demonstrations import Demonstration, Player, read_demonstrations, tokenize
from trainers.display import Display
from trainers.learner import Learner
from trainers.metrics import MetricsLog, PhaseClock, holds_run, validation_metrics
from trainers.model import Policy
from trainers.rollouts import Rollouts, World, load_object, open_world, sandbox_tier_of
from trainers.run import limit_threads
from trainers.samples import Sample
from trainers.serving import make_sampler
from trainers.settings import to_mapping, write_yaml
from trainers.tiny_model import make_tiny_model

_log = logging.getLogger(__name__)

# Demonstrations whose texts a tiny model's tokenizer learns its tokens from.
_CORPUS = 64

_COLUMNS = {"loss": "loss", "validation/success": "validation success", "grad_norm": "gradient norm"}


@dataclass(frozen=True, slots=True)
class SftResult:
    """What a fine-tuning left behind.

    Attributes:
        output: Its folder.
        model: The final model: a Hugging Face folder or a PEFT adapter.
        steps: Optimizer steps it took.
        stopped: The rule was met before the last step.
        validation: Numbers of the last measurement.
    """

    output: Path
    model: Path
    steps: int
    stopped: bool
    validation: dict[str, float]


def sft(config: SftConfig, *, world: World | None = None) -> SftResult:
    """Fine-tune a model on demonstrations.

    Args:
        config: Every option.
        world: The environment as objects, in place of ``config.env.id``.

    Raises:
        ConfigError: The configuration or a demonstration cannot be used.
        TrainingDiverged: Loss or gradient were not finite several times in a row.
    """
    if world is not None:
        config = replace(config, env=replace(config.env, id=config.env.id or "given"))
    for warning in validate_sft(config):
        _log.warning("%s", warning)
    output = Path(config.output)
    if holds_run(output):
        raise ConfigError(f"output={config.output!r} already holds a run; choose another folder")
    measured = config.stop.metric != "none"
    with contextlib.ExitStack() as closing:
        closing.enter_context(limit_threads(config.threads))
        if world is None and (config.demonstrations.policy or measured):
            world = open_world(config.env)
        source = _Source(config, world)
        closing.callback(source.close)

        model = config.model
        if config.tiny.enabled:
            model = replace(model, path=str(_make_tiny(config, source)))
        policy = Policy(model, tokens_per_chunk=config.optimizer.tokens_per_chunk, seed=config.seed)
        learner = Learner(policy, config.optimizer, config.steps)
        renderer = ChatRenderer(policy.tokenizer)
        output.mkdir(parents=True, exist_ok=True)
        write_yaml(output / "config.yaml", config)
        tier = "none" if world is None else sandbox_tier_of(world)
        write_manifest(
            output / "manifest.json", config=to_mapping(config), seeds={"run": config.seed}, sandbox_tier=tier
        )
        rule = _Rule(config, policy, world) if measured and world is not None else None
        if rule is not None:
            closing.callback(rule.close)
        metrics = closing.enter_context(MetricsLog(output))
        display = closing.enter_context(Display("fine-tuning", config.steps, columns=_COLUMNS, enabled=config.progress))

        clock = PhaseClock()
        stopped, validation, step = False, {}, 0
        while step < config.steps and not stopped:
            with clock("demonstrations"):
                demonstrations = source.next(config.demonstrations_per_step)
                rows = _rows(demonstrations, renderer)
            with clock("update"):
                update = learner.imitate(step, rows)
            step += 1
            row: dict[str, Any] = {
                "loss": update.loss,
                "entropy": update.entropy,
                "grad_norm": update.grad_norm,
                "lr": learner.learning_rate(step - 1),
                "trained_tokens": update.tokens,
                "skipped_updates": update.skipped,
            }
            if rule is not None and (step % config.stop.every == 0 or step == config.steps):
                with clock("validation"):
                    validation = rule.measure(step)
                stopped = rule.met(validation)
                row |= validation
            row |= {f"seconds/{phase}": seconds for phase, seconds in clock.lap().items()}
            metrics.write(step, row)
            display.show(step, row)
        policy.save(output / "model")
        return SftResult(output, output / "model", step, stopped, validation)


class _Source:
    """Deals out demonstrations: all of a file over and over, in a new order each time, or fresh ones by a policy."""

    def __init__(self, config: SftConfig, world: World | None) -> None:
        options = config.demonstrations
        self._seed = config.seed
        self._per_task = options.per_task
        self._successful_only = options.successful_only
        self._numbers = count()
        self._player: Player | None = None
        self._read: list[Demonstration] = []
        if options.policy:
            assert world is not None
            self._world = world
            policy = load_object(options.policy, "demonstrations.policy")
            self._player = Player(world, policy, options.policy_kwargs)
        else:
            self._read = [
                demonstration
                for demonstration in read_demonstrations(Path(options.file))
                if demonstration.success or not options.successful_only
            ]
            if not self._read:
                raise ConfigError(f"no episode in {options.file!r} was successful (demonstrations.successful_only)")

    def next(self, number: int) -> list[Demonstration]:
        chosen: list[Demonstration] = []
        for failures in count():
            if len(chosen) == number:
                return chosen
            if failures > 100 * number:
                raise ConfigError(
                    f"demonstrations.policy solved {len(chosen)} of {failures} tasks: too few for "
                    "demonstrations.successful_only; use a better policy, or imitate failures too"
                )
            demonstration = self._make(next(self._numbers))
            if demonstration.success or not self._successful_only:
                chosen.append(demonstration)
        raise AssertionError("count() does not end")

    def texts(self, number: int) -> list[str]:
        """Texts of the first demonstrations, without using them up."""
        return [text for index in range(number) for text in self._make(index).texts]

    def close(self) -> None:
        if self._player is not None:
            self._player.close()

    def _make(self, number: int) -> Demonstration:
        if self._player is None:
            size = len(self._read)
            epoch, position = divmod(number, size)
            return self._read[shuffled(position, size, key=stream_seed("demonstrations", self._seed, epoch))]
        tasks = self._world.train
        epoch, position = divmod(number // self._per_task, len(tasks))
        index = shuffled(position, len(tasks), key=stream_seed("demonstrations", self._seed, epoch))
        return self._player.play(tasks[index], stream_seed("demonstration", self._seed, number) % 2**32)


class _Rule:
    """Measures the model on validation tasks and says when it is good enough."""

    def __init__(self, config: SftConfig, policy: Policy, world: World) -> None:
        if world.validation is None:
            raise ConfigError(
                "stop.metric needs validation tasks, and the environment has none (env.validation_kwargs)"
            )
        self._stop = config.stop
        self._policy = policy
        self._rollouts = Rollouts(
            world,
            make_sampler(policy, max_batch=config.env.parallel, deterministic=False),
            policy.tokenizer,
            env=config.env,
            sampling=config.sampling,
            seed=config.seed,
            deterministic=False,
        )

    def measure(self, step: int) -> dict[str, float]:
        self._rollouts.push(self._policy.weight_update())
        greedy = self._stop.metric == "greedy_success"
        episodes, _ = self._rollouts.validate(step, self._stop.tasks, 1, greedy=greedy)
        return validation_metrics(episodes, 1)

    def met(self, validation: dict[str, float]) -> bool:
        key = "validation/greedy_success" if self._stop.metric == "greedy_success" else "validation/success"
        return validation[key] >= self._stop.at_least

    def close(self) -> None:
        self._rollouts.close()


def _make_tiny(config: SftConfig, source: _Source) -> Path:
    tiny = config.tiny
    return make_tiny_model(
        Path(config.output) / "untrained",
        seed=tiny.seed,
        architecture=tiny.architecture,
        hidden_size=tiny.hidden_size,
        num_layers=tiny.num_layers,
        num_heads=tiny.num_heads,
        intermediate_size=tiny.intermediate_size,
        vocab_size=tiny.vocab_size,
        init_std=tiny.init_std,
        rope_theta=tiny.rope_theta,
        corpus=source.texts(_CORPUS),
    )


def _rows(demonstrations: Sequence[Demonstration], renderer: ChatRenderer) -> list[Row]:
    end_of_turn = renderer.end_of_turn_id
    if end_of_turn is None:
        end_of_turn = renderer.tokenizer.eos_token_id
    samples = []
    for number, demonstration in enumerate(demonstrations):
        samples.append(Sample(str(number), "", 0.0, tuple(tokenize(demonstration, renderer, end_of_turn))))
    return rows_of(samples, {})

"""Selects, tokenizes and orders the demonstrations of a fine-tuning run, in a shuffled order that needs no memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import count

from rllm_gym.chat import ChatRenderer
from rllm_gym.core import stream_seed
from trainers.config import (
    BestConfig,
    ConfigError,
    DemonstrationConfig,
    FilePaths,
    HeldOutConfig,
    PolicyDemonstrationConfig,
    SftConfig,
)
from trainers.fine_tuning.demonstrations import (
    Demonstration,
    DemonstrationCollector,
    Strings,
    can_keep_ids,
    read_demonstrations,
    tokenize,
)
from trainers.fine_tuning.offline_run import EpochOrder
from trainers.fine_tuning.tokenized import LengthLimit, TokenizedSequence, fingerprint, split_held_out
from trainers.option_checks import import_object
from trainers.rollouts.curriculum import shuffled
from trainers.train_env import TrainEnv

# Maximum number of tasks of a policy that are held out: their demonstrations are generated when a run starts.
_MAX_HELD_OUT = 256

SftExample = tuple[TokenizedSequence, ...]
"""One demonstration as token sequences, one per branch of the conversation, each with tokens to train on."""


def select(demonstrations: Sequence[Demonstration], options: DemonstrationConfig) -> list[Demonstration]:
    """Select saved episodes by rejection sampling: successful ones, with enough reward, the best of each task.

    Raises:
        ConfigError: None is left, or the options require episodes and there are only chats.
    """
    set_options = [
        name
        for name, is_set in (
            ("successful_only", options.successful_only),
            ("min_reward", options.min_reward is not None),
            ("best", options.best is not None),
        )
        if is_set
    ]
    if set_options and all(demonstration.reward is None for demonstration in demonstrations):
        raise ConfigError(
            f"demonstrations.{set_options[0]} has no effect: the files contain no episodes, and chats have neither "
            "reward nor success"
        )
    kept = [item for item in demonstrations if item.success or not options.successful_only]
    if not kept:
        raise ConfigError(f"no episode in {options.file!r} was successful (demonstrations.successful_only)")
    if options.min_reward is not None:
        # A chat has no reward and was chosen by the author of the file, so it is always kept.
        kept = [item for item in kept if item.reward is None or item.reward >= options.min_reward]
        if not kept:
            raise ConfigError(
                f"no episode in {options.file!r} has a reward of at least "
                f"demonstrations.min_reward={options.min_reward}"
            )
    if options.best is not None:
        kept = _best(kept, options.best)
    return kept


def _best(demonstrations: Sequence[Demonstration], best: BestConfig) -> list[Demonstration]:
    ranked: defaultdict[str, list[int]] = defaultdict(list)
    chosen = {index for index, demonstration in enumerate(demonstrations) if demonstration.reward is None}
    for index, demonstration in enumerate(demonstrations):
        if demonstration.reward is not None:
            ranked[demonstration.task if best.per == "task" else demonstration.group].append(index)
    for indices in ranked.values():
        # Sorting is stable: the earlier of two equals comes first.
        chosen.update(sorted(indices, key=lambda index: -(demonstrations[index].reward or 0.0))[: best.count])
    return [demonstrations[index] for index in sorted(chosen)]


def tokenize_example(
    demonstration: Demonstration,
    options: DemonstrationConfig | PolicyDemonstrationConfig,
    renderer: ChatRenderer,
    limit: LengthLimit,
) -> SftExample | None:
    """Tokenize one demonstration; ``None`` if it is too long.

    Raises:
        ConfigError: It cannot be rendered, or it is too long and ``length.too_long=error``.
    """
    try:
        sequences = tokenize(demonstration, renderer, train_on=options.train_on)
    except ValueError as error:
        raise ConfigError(f"{demonstration.where or 'a demonstration'} cannot be rendered: {error}") from error
    fitting = limit.fit(sequences, demonstration.where)
    if fitting is None:
        return None
    weights = [turn.weight for turn in demonstration.turns]
    return tuple(TokenizedSequence.of(sequence, weights) for sequence in fitting if any(sequence.mask)) or None


def read_examples(files: FilePaths, config: SftConfig, renderer: ChatRenderer, limit: LengthLimit) -> list[SftExample]:
    """Read all demonstrations of the evaluation files, without selection.

    Raises:
        ConfigError: They are invalid.
    """
    options = config.demonstrations
    strings: Strings = options.strings if isinstance(options, DemonstrationConfig) else "chat"
    read = read_demonstrations(files, strings=strings, option="validation.file")
    examples = list(filter(None, (tokenize_example(demonstration, options, renderer, limit) for demonstration in read)))
    if not examples:
        raise ConfigError(f"validation.file={files!r}: every demonstration is longer than {limit.limit} tokens")
    return examples


class FileSftDataset:
    """All demonstrations of the files, repeatedly, in a new order in each pass.

    Attributes:
        position: Number of demonstrations returned so far.
        held_out: Examples for evaluation; empty without ``validation.fraction``.
        notes: Information about the selection for the user.
    """

    def __init__(self, config: SftConfig) -> None:
        self._config = config
        self.position = 0
        self.held_out: list[SftExample] = []
        self._examples: list[SftExample] = []
        options = config.demonstrations
        assert isinstance(options, DemonstrationConfig)
        self._options = options
        read = read_demonstrations(options.file, strings=options.strings)
        kept = select(read, options)
        self.notes = (
            [f"{len(kept)} of {len(read)} demonstrations are used for training"] if len(kept) < len(read) else []
        )
        self._held_out: list[Demonstration] = []
        if isinstance(config.validation, HeldOutConfig):
            held_out_tasks = split_held_out(
                [demonstration.task for demonstration in kept], config.validation.fraction, config.seed
            )
            self._held_out = [demonstration for demonstration in kept if demonstration.task in held_out_tasks]
            kept = [demonstration for demonstration in kept if demonstration.task not in held_out_tasks]
            self.notes.append(f"{len(self._held_out)} demonstrations of {len(held_out_tasks)} tasks are held out")
        self._demonstrations = kept

    def texts(self, number: int) -> list[str]:
        """Return texts of the first demonstrations in the order of training."""
        order = EpochOrder(len(self._demonstrations), self._config.seed, "demonstrations")
        return [text for index in order.span(0, number) for text in self._demonstrations[index].texts]

    def tokenize(self, renderer: ChatRenderer, limit: LengthLimit) -> None:
        """Tokenize all demonstrations, and free their texts.

        Raises:
            ConfigError: A demonstration is invalid, or none is left.
        """
        num_retokenized = sum(
            any(turn.tokens is not None for turn in demonstration.turns) and not can_keep_ids(demonstration, renderer)
            for demonstration in self._demonstrations
        )
        if num_retokenized:
            self.notes.append(
                f"{num_retokenized} episodes were sampled by a model with another tokenizer; their texts are "
                "tokenized again"
            )
        options = self._options
        for source, examples in ((self._demonstrations, self._examples), (self._held_out, self.held_out)):
            seen: set[bytes] = set()
            for demonstration in source:
                example = tokenize_example(demonstration, options, renderer, limit)
                if example is None:
                    continue
                content = b"|".join(tokens.content() for tokens in example)
                if options.distinct and content in seen:
                    continue
                seen.add(content)
                examples.append(example)
            if source and not examples:
                raise ConfigError(f"every demonstration is longer than {limit.limit} tokens (length.max_length)")
        if options.distinct:
            self.notes.append(f"{len(self._examples)} distinct demonstrations")
        self._demonstrations, self._held_out = [], []
        self._order = EpochOrder(len(self._examples), self._config.seed, "demonstrations")
        self.fingerprint = fingerprint(
            [b"|".join(tokens.content() for tokens in example) for example in self._examples]
        )

    @property
    def size(self) -> int:
        """Number of examples per pass."""
        return len(self._examples)

    def next(self, number: int) -> list[SftExample]:
        """Return the next examples."""
        start, self.position = self.position, self.position + number
        return [self._examples[index] for index in self._order.span(start, self.position)]


class PolicySftDataset:
    """New demonstrations from a policy, task after task. Call :meth:`close`.

    Attributes:
        position: Number of demonstrations generated so far, including failed ones.
        size: Number of demonstrations per pass.
        held_out: Examples for evaluation, of the last tasks; empty without ``validation.fraction``.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, config: SftConfig, env: TrainEnv) -> None:
        options = config.demonstrations
        assert isinstance(options, PolicyDemonstrationConfig)
        self.position = 0
        self._options = options
        self._seed = config.seed
        self._tasks = env.train
        self._num_trained = len(env.train)
        if isinstance(config.validation, HeldOutConfig):
            fraction = config.validation.fraction
            self._num_trained -= min(max(1, round(fraction * self._num_trained)), _MAX_HELD_OUT)
            if self._num_trained < 1:
                raise ConfigError(f"validation.fraction={fraction} of {len(env.train)} task(s) leaves none to train on")
        self.size = options.per_task * self._num_trained
        self.held_out: list[SftExample] = []
        self._collector = DemonstrationCollector(
            env, import_object(options.policy, "demonstrations.policy"), options.policy_kwargs
        )
        self.fingerprint = f"{options.policy} {sorted(options.policy_kwargs.items())!r}"

    def texts(self, number: int) -> list[str]:
        """Return texts of the first demonstrations, without consuming them."""
        return [text for position in range(number) for text in self._collect_next(position).texts]

    def tokenize(self, renderer: ChatRenderer, limit: LengthLimit) -> None:
        """Set the renderer and length limit for later demonstrations, and generate those for evaluation."""
        self._renderer, self._limit = renderer, limit
        held_out = (self._example(self._collect(i, i)) for i in range(self._num_trained, len(self._tasks)))
        self.held_out = list(filter(None, held_out))

    def next(self, number: int) -> list[SftExample]:
        """Return the next examples.

        Raises:
            ConfigError: The policy succeeds too rarely, or its demonstrations are too long.
        """
        chosen: list[SftExample] = []
        for attempts in count():
            if len(chosen) == number:
                return chosen
            if attempts > 100 * number:
                raise ConfigError(
                    f"demonstrations.policy solved {len(chosen)} of {attempts} tasks within length.max_length: too few "
                    "for demonstrations.successful_only; use a better policy, or include failed episodes"
                )
            example = self._example(self._collect_next(self.position))
            self.position += 1
            if example is not None:
                chosen.append(example)
        raise AssertionError("count() does not end")

    def close(self) -> None:
        self._collector.close()

    def _example(self, demonstration: Demonstration) -> SftExample | None:
        if self._options.successful_only and not demonstration.success:
            return None
        return tokenize_example(demonstration, self._options, self._renderer, self._limit)

    def _collect_next(self, number: int) -> Demonstration:
        epoch, position = divmod(number // self._options.per_task, self._num_trained)
        key = stream_seed("demonstrations", self._seed, epoch)
        return self._collect(shuffled(position, self._num_trained, key=key), number)

    def _collect(self, task: int, number: int) -> Demonstration:
        return self._collector.collect(self._tasks[task], stream_seed("demonstration", self._seed, number) % 2**32)

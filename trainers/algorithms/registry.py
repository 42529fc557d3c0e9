"""All algorithms and losses by name, and the options of a combination of the two.

A name is one of this package, or ``my_module:MY_ALGORITHM`` for an object elsewhere.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import field, fields, make_dataclass
from typing import Annotated, Any, ClassVar

import tyro

from trainers.algorithms.algorithm import Algorithm, AlgorithmRun
from trainers.algorithms.distillation import DISTILLATION, GKD
from trainers.algorithms.dr_grpo import DR_GRPO
from trainers.algorithms.grpo import GRPO
from trainers.algorithms.losses import CISPO, CLIP, DPPO, GSPO, Loss
from trainers.algorithms.losses import REINFORCE as REINFORCE_LOSS
from trainers.algorithms.options import Aggregation, AlgorithmOptions, LossOptions, RatioOptions
from trainers.algorithms.ppo import PPO
from trainers.algorithms.rebn import REBN
from trainers.algorithms.reinforce import REINFORCE
from trainers.algorithms.reinforce_plus_plus import REINFORCE_PLUS_PLUS
from trainers.algorithms.remax import REMAX
from trainers.algorithms.rloo import RLOO
from trainers.option_checks import ConfigError, check_options_type, find_object

ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (GRPO, DR_GRPO, RLOO, REMAX, REINFORCE, REINFORCE_PLUS_PLUS, REBN, DISTILLATION, GKD, PPO)
}
"""The algorithms of this package by name."""
LOSSES: dict[str, Loss] = {loss.name: loss for loss in (CLIP, GSPO, CISPO, DPPO, REINFORCE_LOSS)}
"""The losses of this package by name."""

SELECTORS = (
    *("name", "loss", "kl", "kl_reward", "teacher", "importance_cap", "old_logprobs", "epochs", "minibatches"),
)
"""The options that decide which other options of the algorithm there are."""

_COMBINATIONS: dict[type, tuple[Algorithm, Loss]] = {}


def algorithm_options(name: str | Algorithm = GRPO.name, **options: Any) -> AlgorithmOptions:
    """Return the options of an algorithm; those that are not given keep their defaults.

    >>> algorithm_options("ppo", gae_lambda=0.95).gae_lambda  # type: ignore[attr-defined]
    0.95

    Args:
        name: The name of an algorithm, ``module:NAME``, or an algorithm.
        options: Its options, ``loss``, and the options of the loss.

    Raises:
        ConfigError: There is no such algorithm or loss, or they have no such option.
    """
    kind = options_type({"name": name, **options})
    for option in options.keys() - {entry.name for entry in fields(kind)}:
        algorithm, loss = _COMBINATIONS[kind]
        owners = ", ".join(owners_of(option)) or "nothing"
        raise ConfigError(f"{algorithm.name} with loss {loss.name} has no option {option!r}; it is read with {owners}")
    built: AlgorithmOptions = kind(**options)
    return built


def options_of(algorithm: Algorithm, options: AlgorithmOptions) -> AlgorithmOptions:
    """Return ``options`` as options of ``algorithm``; those that differ from their defaults are taken over.

    Raises:
        ConfigError: The algorithm does not have one of these, or ``options`` were not created by
            :func:`algorithm_options`.
    """
    previous, loss = _combination(options)
    if previous is algorithm:
        return options
    before = type(options)()
    changed = {
        entry.name: value
        for entry in fields(options)
        if (value := getattr(options, entry.name)) != getattr(before, entry.name)
    }
    if (
        isinstance(options, RatioOptions) and loss is not previous.loss
    ):  # chosen, although it is the default of this combination
        changed["loss"] = options.loss
    return algorithm_options(algorithm, **changed)


def make_algorithm(options: AlgorithmOptions, max_tokens: int = 1) -> AlgorithmRun:
    """Create an algorithm with its options.

    Args:
        options: Created by :func:`algorithm_options`, or read from a configuration.
        max_tokens: Maximum number of sampled tokens per episode: the constant of ``aggregation=constant``.

    Raises:
        ConfigError: The options are of another type.
    """
    algorithm, loss = _combination(options)
    return AlgorithmRun(algorithm, loss, options, max_tokens)


def _combination(options: AlgorithmOptions) -> tuple[Algorithm, Loss]:
    if type(options) not in _COMBINATIONS:
        raise ConfigError(
            f"{type(options).__name__}(...) are not the options of an algorithm with its loss; create them with "
            "algorithm_options(name, ...)"
        )
    return _COMBINATIONS[type(options)]


def options_type(chosen: Mapping[str, Any]) -> type[AlgorithmOptions]:
    """Return the type of the options of an algorithm and its loss.

    Args:
        chosen: The options that are set; only :data:`SELECTORS` are read.

    Raises:
        ConfigError: There is no such algorithm or loss.
    """
    name = chosen.get("name", GRPO.name)
    if isinstance(name, Algorithm):
        algorithm, name = name, _path_of(name)
    else:
        algorithm = find_object(name, ALGORITHMS, Algorithm, "algorithm.name")
    check_options_type(algorithm.options, AlgorithmOptions, algorithm.name)
    loss_name = algorithm.loss.name
    if issubclass(algorithm.options, RatioOptions):
        loss_name = chosen.get("loss", loss_name)
    loss = (
        algorithm.loss if loss_name == algorithm.loss.name else find_object(loss_name, LOSSES, Loss, "algorithm.loss")
    )
    check_options_type(loss.options, LossOptions, loss.name)
    entries = fields(algorithm.options) + fields(loss.options)
    values = {entry.name: entry.default for entry in entries} | dict(chosen)
    absent = [entry.name for entry in entries if "exists" in entry.metadata and not entry.metadata["exists"](values)]
    return _combine(algorithm, name, loss, loss_name, tuple(absent))


def _path_of(algorithm: Algorithm) -> str:
    """Return the name under which another process finds an algorithm: ``module:NAME`` for one of a user. An algorithm
    that is not in a module with one of its parts, or is in the main program, has only its bare name.
    """
    if ALGORITHMS.get(algorithm.name) is algorithm:
        return algorithm.name
    parts = (algorithm.options, algorithm.advantages, algorithm.loss.function, algorithm.rollouts_per_prompt)
    for module in dict.fromkeys(getattr(part, "__module__", "__main__") for part in parts):
        if module != "__main__" and module in sys.modules:
            for name, value in vars(sys.modules[module]).items():
                if value is algorithm:
                    return f"{module}:{name}"
    return algorithm.name


def owners_of(option: str) -> list[str]:
    """Return the settings with which the algorithm section has an option."""
    owners: dict[str, list[str]] = {}
    for kind, table in (("name", ALGORITHMS), ("loss", LOSSES)):
        for found in table.values():
            for entry in fields(found.options):
                if entry.name == option:
                    owners.setdefault(entry.metadata.get("setting", ""), []).append(f"algorithm.{kind}={found.name}")
    always = owners.pop("", [])
    return [f"{setting} ({' or '.join(names)})" for setting, names in owners.items()] + always


@functools.cache
def _combine(
    algorithm: Algorithm, name: str, loss: Loss, loss_name: str, absent: tuple[str, ...]
) -> type[AlgorithmOptions]:
    defaults = {entry.name: entry.default for entry in fields(loss.options)}
    both = {entry.name for entry in fields(algorithm.options)} & defaults.keys()
    defaults |= {entry.name: entry.default for entry in fields(algorithm.options)}
    if both:
        raise ConfigError(
            f"algorithm {algorithm.name!r} and loss {loss.name!r} both have an option {', '.join(sorted(both))}; "
            "rename one of them"
        )
    own: list[tuple[str, Any, Any]] = [
        ("name", _described("name", ALGORITHMS), field(default=name)),
        ("aggregation", Aggregation, field(default=algorithm.aggregation or loss.aggregation)),
    ]
    if issubclass(algorithm.options, RatioOptions):
        own.append(("loss", _described("loss", LOSSES), field(default=loss_name)))
    own += [(option, ClassVar[Any], defaults[option]) for option in absent]  # constants
    kind = make_dataclass(
        "AlgorithmOptions",
        own,
        bases=(loss.options, algorithm.options),
        frozen=True,
        namespace={"__doc__": AlgorithmOptions.__doc__},
    )
    _COMBINATIONS[kind] = algorithm, loss
    return kind


def _described(option: str, table: Mapping[str, Algorithm] | Mapping[str, Loss]) -> Any:
    """Return the type of an option that names an object, with the objects of this package in the text of --help."""
    lines = []
    for name, found in table.items():
        function = found.advantages if isinstance(found, Algorithm) else found.function
        first_line, _, _ = (function.__doc__ or "").partition("\n")
        lines.append(f"{name}: {first_line}")
    kind = "algorithm" if option == "name" else "loss"
    text = (
        f"The {kind}, or my_module:MY_{kind.upper()} for one of your own. {' '.join(lines)} The other options depend "
        "on algorithm.name and algorithm.loss; see, for example, --algorithm.name ppo --help-all."
    )
    return Annotated[str, tyro.conf.arg(help=text)]

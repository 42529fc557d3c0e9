"""Options of the roles of a workflow: which adapter each role uses, which roles are trained, and frozen opponents."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from trainers.config.model import ModelConfig
from trainers.config.sampler import synced_weights
from trainers.json_object import shown_as_json
from trainers.option_checks import ConfigError, PositiveInt, raise_if_any
from trainers.sampler_backends import SamplerOptions, find_backend

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
BASE = "base"
"""The name under which a sampler serves the model before training."""
_RESERVED = (BASE, "default", "shared")


@dataclass(frozen=True)
class CopiesConfig:
    """Self-play against frozen copies of the policy: a pool of its weights at earlier steps."""

    of: str = ""
    """The role whose weights are copied. Not needed if only one set of weights is trained."""
    pool: PositiveInt = 4
    """Maximum number of copies; the oldest is removed from a full pool. All episodes of a group use the same copy."""
    every: PositiveInt = 20
    """Steps between two copies; the first copy is the model before training."""


@dataclass(frozen=True)
class RoleConfig:
    """Options of one role of a workflow."""

    adapter: Literal["shared", "shared-untrained", "own", "base"] = "shared"
    """``shared``: the weights shared by all roles with this setting (one adapter or, in full fine-tuning, the model).
    ``shared-untrained``: the newest shared weights, which only the other roles train. ``own``: a separate adapter on
    the same base. ``base``: the model before training, which is never trained."""
    max_tokens: PositiveInt | None = None
    """Maximum length of the reply of one turn of this role, in tokens; none for ``sampling.max_tokens``."""
    copies: CopiesConfig | None = None
    """Use frozen copies of the policy for this role, its opponents in self-play; ``{}`` for the default pool."""


@dataclass(frozen=True)
class OpponentsConfig(CopiesConfig):
    """The role that uses frozen copies, and its options. The role is empty if there is none."""

    role: str = ""

    @classmethod
    def of_roles(cls, roles: Mapping[str, RoleConfig]) -> OpponentsConfig:
        """Return the options of the role with copies."""
        for name, role in roles.items():
            if role.copies is not None:
                return cls(role.copies.of, role.copies.pool, role.copies.every, name)
        return cls()


Roles = Annotated[Mapping[str, RoleConfig], shown_as_json]
"""Roles by name: a YAML mapping, or JSON on the command line."""


@dataclass(frozen=True)
class RoleAssignment:
    """The resolved roles of a run. Roles that no option mentions are shared and trained.

    Attributes:
        config: Options by role.
        opponents: Options of the frozen opponents; ``opponents.role`` is ``""`` for none.
    """

    config: Mapping[str, RoleConfig]
    opponents: OpponentsConfig

    def role(self, name: str) -> RoleConfig:
        return self.config.get(name) or RoleConfig()

    def trainable(self, name: str) -> bool:
        """Return whether the role's replies are trained on."""
        return name != self.opponents.role and self.role(name).adapter in ("shared", "own")

    def weights(self, name: str) -> str:
        """Return the name under which a sampler serves the role: ``""`` for the shared weights. Opponents have a
        pool instead.
        """
        role = self.role(name)
        return {"own": name, "base": BASE}.get(role.adapter, "")

    def adapters(self, roles: tuple[str, ...]) -> tuple[str, ...]:
        """Return the sets of weights that are trained, by the names a sampler serves them under."""
        return tuple(dict.fromkeys(self.weights(name) for name in roles if self.trainable(name)))

    def served(self, roles: tuple[str, ...]) -> tuple[str, ...]:
        """Return all sets of weights that some role uses, without the pool of opponents."""
        return tuple(dict.fromkeys(self.weights(name) for name in roles if name != self.opponents.role))


def check_roles(
    roles: Mapping[str, RoleConfig],
    opponents: OpponentsConfig,
    model: ModelConfig,
    problems: list[str],
) -> None:
    """Check the options alone; :func:`check_role_assignment` checks them against the roles of the loaded workflow."""
    for name, role in roles.items():
        _check_role(name, role, model, problems)
    with_copies = [name for name, role in roles.items() if role.copies is not None]
    if len(with_copies) > 1:
        problems.append(f"roles {', '.join(with_copies)} all have copies; only one role can")
    if not opponents.role:
        return
    where = f"roles.{opponents.role}"
    role = roles[opponents.role]
    if role.adapter != "shared":
        problems.append(
            f"{where}.adapter={role.adapter} conflicts with {where}.copies, which are copies of trained weights; "
            "remove it"
        )
    if opponents.of == opponents.role:
        problems.append(f"{where}.copies.of={opponents.of!r} is the role itself, which is not trained; name another")


def opponent_warnings(opponents: OpponentsConfig, steps: int) -> list[str]:
    """Warn about a pool that would never contain more than the model before training."""
    if not opponents.role or opponents.every < steps:
        return []
    return [
        f"roles.{opponents.role}.copies.every={opponents.every} with steps={steps}: the only opponent is the model "
        "before training; use a smaller value for self-play against trained copies"
    ]


def _check_role(name: str, role: RoleConfig, model: ModelConfig, problems: list[str]) -> None:
    if not _NAME.fullmatch(name) or name in _RESERVED:
        problems.append(
            f"roles.{name}: a role name must start with a letter, consist of at most 64 letters, digits, _ and -, and "
            f"not be one of the reserved names {', '.join(_RESERVED)}"
        )
    if role.adapter == "own" and model.tuning == "full":
        problems.append(
            f"roles.{name}.adapter=own with model.tuning=full: a full model per role, with its own gradients and "
            "optimizer states, is not supported; use model.tuning=lora (one adapter per role on one base), or adapter: "
            "shared"
        )


def check_role_assignment(
    assignment: RoleAssignment, roles: tuple[str, ...], sampler: SamplerOptions, model: ModelConfig
) -> None:
    """Check that the options match the roles of the workflow.

    Raises:
        ConfigError: The options name other roles, no role is trained, or the sampler cannot serve the roles.
    """
    problems: list[str] = []
    if not roles:
        problems = [f"roles.{name}: there is a single agent; only a workflow has roles" for name in assignment.config]
        raise_if_any(problems)
        return
    known = ", ".join(roles)
    problems += [
        f"roles.{name}: the workflow has no such role; its roles are {known}"
        for name in assignment.config
        if name not in roles
    ]
    problems += [
        f"roles.{assignment.opponents.role}.copies.of={name!r}: the workflow has no such role; its roles are {known}"
        for name in (assignment.opponents.of,)
        if name and name not in roles
    ]
    raise_if_any(problems)
    adapters = assignment.adapters(roles)
    if not adapters:
        raise ConfigError(
            f"no role is trained: none of {known} has adapter: shared or own; give at least one of them one of the two"
        )
    idle_shared = [
        name for name in roles if not assignment.trainable(name) and assignment.weights(name) not in (*adapters, BASE)
    ]
    for name in idle_shared:
        if name != assignment.opponents.role:
            raise ConfigError(
                f"roles.{name}: adapter: shared-untrained, but no other role trains the shared weights; "
                "use adapter: base"
            )
    if assignment.opponents.role:
        where = f"roles.{assignment.opponents.role}.copies"
        if assignment.opponents.of and not assignment.trainable(assignment.opponents.of):
            raise ConfigError(
                f"{where}.of={assignment.opponents.of!r} is not trained, so all its copies would be the same"
            )
        if not assignment.opponents.of and len(adapters) > 1:
            raise ConfigError(
                f"{where}.of is missing: {len(adapters)} adapters are trained; set it to the role whose weights "
                "the opponents copy"
            )
    named = {name for name in (*adapters, *assignment.served(roles)) if name} or bool(assignment.opponents.role)
    several = bool(named) and synced_weights(sampler, model) == "full"
    if several and not find_backend(sampler.backend).several_full_models:
        raise ConfigError(
            f"sampler.backend={sampler.backend} cannot serve several full models, which roles with different weights "
            "require if full weights are synced; use sampler.backend=torch, or let it load adapters "
            "(model.tuning=lora, no enable_lora=false in sampler.engine_args)"
        )

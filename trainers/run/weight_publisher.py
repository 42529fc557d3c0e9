"""Keeps the sampler serving the current weights: syncs those that changed, and replaces a sampler that died.

The caller ensures that no episodes are in progress during a weight sync, unless it may change their weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from rllm_gym.samplers.protocol import Sampler, SamplerError, WeightUpdate
from trainers.config import RoleAssignment, TrainConfig
from trainers.config.roles import BASE
from trainers.learner import LearnerSet
from trainers.model import Policy
from trainers.rollouts.collector import RolloutCollector
from trainers.rollouts.opponents import OpponentPool
from trainers.rollouts.sampler_factory import active_weights, base_weights, weights_for

_log = logging.getLogger(__name__)

MAX_RESTARTS = 2
"""Number of samplers in a step that are replaced after they died; their requests are repeated."""


@dataclass
class WeightPublisher:
    """Syncs trained and frozen weights to the sampler, each under its name.

    Attributes:
        policy: The trained model.
        learners: Its learners, which count the versions of its weights.
        collector: Owner of the sampler.
        opponents: The frozen opponents, if there are any.
        assignment: Roles of the run.
        config: Options of the run.
        make_sampler: Creates a new sampler after one died; ``None`` if that is not possible, because the caller of the
            run created it.
        version: Version of the policy's weights that the sampler has; -1 before the first weight sync.
        on_replaced: Called after a sampler was replaced: the new one counts its weight versions from the beginning.
    """

    policy: Policy
    learners: LearnerSet
    collector: RolloutCollector
    opponents: OpponentPool | None
    assignment: RoleAssignment
    config: TrainConfig
    make_sampler: Callable[[], Sampler] | None
    version: int = field(default=-1, init=False)
    on_replaced: Callable[[], None] = field(default=lambda: None, init=False)
    _frozen: set[str] = field(default_factory=set, init=False)  # names of the frozen weights that the sampler has
    _version_by_sync: dict[int, int] = field(default_factory=dict, init=False)  # weight sync to weight version
    _replaced: int = field(default=0, init=False)
    _asleep: bool = field(default=False, init=False)

    def is_due(self, step: int) -> bool:
        """Return whether the sampler needs other weights after this many steps."""
        return self.version != self.learners.version or (self.opponents is not None and self.opponents.due(step))

    def sync_weights(self, step: int) -> None:
        """Sync the weights after this many steps, and add a copy of them to the opponents if one is due.

        Raises:
            SamplerError: The sampler died, or does not serve the weights it was given, and so did its replacements.
        """
        if self.opponents is not None and self.opponents.due(step):
            self.opponents.add_copy(step, self._copied())
        try:
            self._sync()
        except SamplerError as error:
            self.replace_sampler(error)

    def sleep(self) -> None:
        """Free the sampler's GPU memory until :meth:`wake`, if it can and if nothing is sampled meanwhile.

        Raises:
            SamplerError: The sampler died, and so did its replacements.
        """
        try:
            self._asleep = not self.config.asynchrony.steps_ahead and self.collector.sleep()
        except SamplerError as error:
            self.replace_sampler(error)

    def wake(self) -> None:
        """Undo :meth:`sleep`. Raises as :meth:`sleep`."""
        if self._asleep:
            self._asleep = False
            if self.policy.device.type == "cuda":
                torch.cuda.empty_cache()  # the sampler cannot use what torch keeps for later tensors
            try:
                self.collector.wake()
            except SamplerError as error:
                self.replace_sampler(error, again=False)

    def replace_sampler(self, error: SamplerError, *, again: bool = True) -> None:
        """Replace a sampler that died by a new one with the current weights.

        Args:
            error: How it died.
            again: Whether the weights are those of the last weight sync.

        Raises:
            SamplerError: The sampler was created by the caller of the run, or too many died in this step.
        """
        while True:
            if self.make_sampler is None or self._replaced >= MAX_RESTARTS:
                raise error
            self._replaced += 1
            _log.warning("the sampler died and is replaced: %s", error)
            try:
                self.collector.replace_sampler(self.make_sampler)
                self._frozen.clear()
                self._sync(again=again)
                self.on_replaced()
                return
            except SamplerError as next_error:
                error = next_error

    def end_step(self) -> None:
        """Reset the number of samplers that may be replaced."""
        self._replaced = 0

    def version_of(self, weight_sync: int) -> int:
        """Return the version of the policy's weights of a weight sync whose tokens may be trained on; -1 for another
        one.
        """
        return self._version_by_sync.get(weight_sync, -1)

    def _sync(self, *, again: bool = False) -> None:
        """Sync the current weights and missing frozen ones, and drop frozen ones that are no longer used."""
        if BASE in self.assignment.served(self.collector.train_env.roles):
            self._serve(base_weights())
        if self.opponents is not None:
            for name in sorted(self._frozen - {BASE, *self.opponents.names}):  # drop first to make room
                self.collector.drop(name)
                self._frozen.discard(name)
            for name in self.opponents.names:
                if name not in self._frozen:
                    self._serve(self.opponents.update(name, self._copied()))
            self.collector.set_opponents(self.opponents.names)
        self.collector.sync_weights(weights_for(self.policy, self.config), again=again)
        self.version = self.learners.version
        # Keep those of the episodes being trained on, and of the next episodes, sampled meanwhile.
        before = dict(list(self._version_by_sync.items())[-max(1, self.config.asynchrony.steps_ahead) :])
        self._version_by_sync = {**before, self.collector.weight_syncs: self.version}

    def _serve(self, update: WeightUpdate) -> None:
        if update.name not in self._frozen:
            self.collector.serve_frozen(update)
            self._frozen.add(update.name)

    def _copied(self) -> WeightUpdate:
        """Return the current weights that opponents are copies of."""
        of = self.config.opponents.of
        self.policy.activate(self.assignment.weights(of) if of else self.policy.adapters[0])
        return active_weights(self.policy, self.config)

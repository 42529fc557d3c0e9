"""Options for collecting the episodes of later steps while the model trains on the current ones."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.option_checks import NonNegativeInt


@dataclass(frozen=True)
class AsynchronyConfig:
    """Collection of the episodes of later steps during the update of the current step. They are sampled with older
    weights; the loss corrects for this by the ratio to the sampler's log-probs."""

    steps_ahead: NonNegativeInt = 0
    """Maximum number of steps whose episodes are collected in advance. With 1, those of step n + 1 are collected during
    the update of step n, and the next weight sync waits for them: all episodes of a step are sampled with the same
    weights. With 2 or more, nothing waits for slow episodes: a weight sync changes the weights of episodes in progress
    (with the torch sampler in the middle of a reply, with others between two), so that their tokens come from several
    versions of the weights, each with the log-prob of its own. Episodes with a token more than this number of weight
    syncs old are dropped and counted, which detects a sampler that missed a weight sync."""


def check_asynchrony(
    asynchrony: AsynchronyConfig, problems: list[str], *, deterministic: bool, has_opponents: bool, backend: str
) -> None:
    option = f"asynchrony.steps_ahead={asynchrony.steps_ahead}"
    if deterministic and asynchrony.steps_ahead:
        problems.append(
            f"{option} with deterministic=True: after a resume the prefetched episodes would be sampled with other "
            "weights than without the interruption; use steps_ahead=0"
        )
    if backend == "openai" and asynchrony.steps_ahead > 1:
        problems.append(
            f"{option} with sampler.backend=openai: the endpoint keeps the last two versions of an adapter, and a "
            "request in progress may need an older one; use at most 1, or sampler.backend=vllm-server"
        )
    if has_opponents and asynchrony.steps_ahead > 1:
        problems.append(
            f"{option} with a role that has copies: the opponents of an episode in progress would change; use at most 1"
        )

"""Checks that an environment fulfils the API contract: ``print(check_text_env("rllm/FrozenLake-v0"))``.

The checker runs the environment and reports what it finds. It needs no test runner and works with any environment. For
multi-agent games, see ``rllm_gym.testing.games``.
"""

from __future__ import annotations

from collections.abc import Callable

from rllm_gym.runtime import DeadlineExceeded, WorkerPool
from rllm_gym.testing.checked_env import GymEnv, Oracle
from rllm_gym.testing.checks import Checks, SkipCheck
from rllm_gym.testing.games import check_text_game
from rllm_gym.testing.report import ContractViolation, Finding, Report

__all__ = ["ContractViolation", "Finding", "Report", "check_text_env", "check_text_game"]


def check_text_env(
    env_id_or_factory: str | Callable[..., GymEnv],
    *,
    oracle: Oracle | None = None,
    fuzz: int = 200,
    seed: int = 0,
    deadline: float = 120.0,
) -> Report:
    """Check that an environment fulfils the contract of :class:`~rllm_gym.core.TextEnv`, including Gymnasium's API.

    Args:
        env_id_or_factory: A registered id, or a function (or class) that creates a new environment. Render modes are
            tested if it accepts ``render_mode=``.
        oracle: A policy that solves the task: ``oracle(env)`` with the unwrapped environment, or
            ``oracle(observation, info)``; returns the action. At least half of its episodes must succeed.
        fuzz: Number of arbitrary Unicode actions to try.
        seed: Seed of all random choices of the checker.
        deadline: Maximum duration of a single check in seconds. A check that takes longer is a finding and ends the
            run.

    Returns:
        The report. A faulty environment does not raise an exception.

    Raises:
        TypeError: ``env_id_or_factory`` is neither a string nor callable, for example an environment instance.
    """
    if not isinstance(env_id_or_factory, str) and not callable(env_id_or_factory):
        raise TypeError(
            f"give an id or a function that creates the environment, such as lambda: MyEnv(); "
            f"got {type(env_id_or_factory).__name__}"
        )
    subject = env_id_or_factory if isinstance(env_id_or_factory, str) else _name_of(env_id_or_factory)
    report = Report(subject)
    checker = Checks(env_id_or_factory, oracle, fuzz, seed, report)
    with WorkerPool("thread", max_workers=1, name="check-text-env") as pool:
        for name, check in checker.checks():
            before = len(report.findings)
            checker.check = name
            try:
                pool.run(check, timeout=deadline)
            except DeadlineExceeded:
                checker.add_finding(
                    f"took longer than {deadline:g} s: reset and step must take bounded time on any input"
                )
                break
            except SkipCheck as reason:
                report.skipped[name] = str(reason)
            except Exception as error:
                checker.add_finding(f"raised {type(error).__name__}: {str(error)[:500]}")
            finally:
                checker.close_all()
            if name == "make" and report.findings:
                break
            if len(report.findings) == before and name not in report.skipped:
                report.passed.append(name)
    # Every check also validates each step, under the name of the check that covers it, so remove failed names.
    broken = {finding.check for finding in report.findings}
    report.passed = [name for name in report.passed if name not in broken]
    return report


def _name_of(factory: Callable[..., GymEnv]) -> str:
    return getattr(factory, "__qualname__", None) or type(factory).__name__

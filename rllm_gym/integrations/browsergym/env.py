"""A task of BrowserGym as an environment: ``gym.make("rllm/BrowserGym-v0", task="miniwob.click-test")``."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_gym.core import EnvironmentFault, InvalidAction, Outcome, StopReason, Task, TaskError, TaskSource, TextEnv
from rllm_gym.core.per_process import PerProcess
from rllm_gym.data import ProceduralTaskset, Taskset
from rllm_gym.envs.web.browser.executable import find_chromium
from rllm_gym.integrations.browsergym.session import BrowserGymPage, BrowserGymSession, check_task
from rllm_gym.parsing.browser_actions import find_action_call
from rllm_gym.parsing.literal_calls import LiteralCall, WrittenNumber
from rllm_gym.runtime import Actor, WorkerDied, WorkerPool

START_SECONDS = 120.0
"""Deadline in seconds for importing BrowserGym."""
BEGIN_SECONDS = 300.0
"""Deadline in seconds for setting up a task, which starts a browser and may log in to several sites."""
STEP_SECONDS = 120.0
"""Deadline in seconds for an action, its effects and the observation."""
SUBSETS = ("chat", "infeas", "bid", "nav", "tab")
"""BrowserGym's default sets of actions."""
LOST = "The browser does not answer any more, and the task has ended."
_INSTALL = "BrowserGym is not installed: pip install 'rllm-gym[browsergym]'"
_TAKEN = ("action_mapping", "task_entrypoint", "use_raw_page_output", "wait_for_user_message")
_RULES = """\
You work in a web browser, one action a turn. Think first if you like, then write the action alone in a last fenced \
block:
```
click("12")
```
It can be one of these; [12] and the like are the numbers of elements in the page below.
{actions}
"""
_CUT = "\n[The rest was cut: max_observation_chars is too small for it.]"
_SEEDS = 2**32

_logger = logging.getLogger(__name__)


class BrowserGymEnv(TextEnv):
    """Do a task of BrowserGym: MiniWoB, WebArena, VisualWebArena, WorkArena, AssistantBench or one of your own.

    ## Description
    BrowserGym's own environment runs in a worker process, with its own tasks, actions, observations and rewards. The
    servers of a task are yours, and BrowserGym finds them in environment variables (``WA_SHOPPING`` and the like). For
    MiniWoB, ``rllm/MiniWoB-…-v0`` is many times faster, seeded completely, and closed against cheating.

    ## Action space
    Any text that ends with one action of BrowserGym, such as ``click("12")``, in a fenced block, alone on the last
    line, or as a tool call. ``goto`` opens only ``http`` and ``https`` URLs; ``upload_file`` and ``mouse_upload_file``,
    which read files of this machine, are not offered.

    ## Observation space
    Text: the goal (in the first observation with the actions and their format), the error message of the last action,
    new messages of the user, the tabs, and the accessibility tree as BrowserGym writes it. Goals with pictures are a
    ``TaskError``.

    ## Starting state
    One task, chosen by ``options={"task": index | task_id | Task}``, else drawn with the seed of the reset. It
    determines BrowserGym's name of the task and its seed.

    ## Rewards
    ``task``: BrowserGym's reward of each action. ``success`` is an episode that ends with a sum of 1 or more.

    ## Episode end
    Terminates when BrowserGym says so, which is also after ``report_infeasible``; truncated (``max_turns``) when no
    turns are left. If the browser hangs or fails after an action of the model, the episode terminates with reward 0
    (``server_lost``), because the action may be why; a browser or worker that ends is a fault.

    ## Information
    The keys of :class:`~rllm_gym.core.TextEnv`, and ``url: str``, of the page, and ``action_error: str``, why the last
    action failed (``""`` if it did not).

    ## Arguments
    Args:
        task: BrowserGym's name of a task without ``browsergym/``, such as ``"miniwob.click-checkboxes"`` or
            ``"webarena.310"``, which is played with many seeds; or a list of names, which are played with one seed
            each.
        config: Further arguments of BrowserGym's ``BrowserEnv``, of JSON types, such as ``{"slow_mo": 0}`` or
            ``{"task_kwargs": {...}}``.
        actions: BrowserGym's sets of actions; also ``"coord"``, ``"webarena"`` and others.
        split: ``"train"``, ``"validation"`` or ``"test"``: seeds (or, of a list, names) are divided among them;
            ``None`` means ``"train"`` for one task, and all for a list.
        task_seed: A different value gives different seeds of the tasks.
        num_tasks: Number of seeds of one task, 1,000,000 by default; of a list, how many of its tasks.
        max_turns: Number of actions.
        executable: The Chromium to use; ``None`` searches for one.
        invalid_action_penalty: Subtracted from the reward if a reply contains no action.
        max_observation_chars: Bound of the observation's text; a longer page is cut.
        max_action_chars: Longest accepted reply.
        render_mode: ``"ansi"`` or ``None``.

    Raises:
        BrowserFault: No Chromium was found; the message names a solution.
        ModuleNotFoundError: ``pip install 'rllm-gym[browsergym]'``.
        ValueError: There is no such task, its package is missing, or another argument is invalid.

    ## Version history
    v0: first release.
    """

    max_step_s = STEP_SECONDS

    def __init__(
        self,
        task: str | Iterable[str] = "miniwob.click-checkboxes",
        *,
        config: Mapping[str, Any] | None = None,
        actions: Sequence[str] = SUBSETS,
        split: str | None = None,
        task_seed: int = 0,
        num_tasks: int | None = None,
        max_turns: int = 30,
        executable: str | os.PathLike[str] | None = None,
        invalid_action_penalty: float = 0.0,
        max_observation_chars: int = 40_000,
        max_action_chars: int = 1_000_000,
        render_mode: str | None = None,
    ) -> None:
        # Its packages share a namespace, and any folder of that name is one.
        if importlib.util.find_spec("browsergym") is None or importlib.util.find_spec("browsergym.core") is None:
            raise ModuleNotFoundError(_INSTALL, name="browsergym")
        names = (task,) if isinstance(task, str) else tuple(task)
        for name in names:
            _pool().run(check_task, name, timeout=START_SECONDS)
        super().__init__(
            tasks=_tasks(task if isinstance(task, str) else names, split, task_seed, num_tasks),
            max_turns=max_turns,
            invalid_action_penalty=invalid_action_penalty,
            max_observation_chars=max_observation_chars,
            max_action_chars=max_action_chars,
            render_mode=render_mode,
        )
        self._arguments = (_config(config), tuple(actions), str(find_chromium(executable)))
        self._actor: Actor | None = None
        self._rules = _RULES.format(actions=self._session().call("describe_actions", timeout=START_SECONDS))
        self._forget_episode()

    def _forget_episode(self) -> None:
        self._goal = self._url = self._error = ""
        self._acted, self._total = False, 0.0

    def _session(self) -> Actor:
        if self._actor is None or not self._actor.alive:
            environ = dict(os.environ)  # that of the pool is of the time when it started
            self._actor = _pool().actor(BrowserGymSession, *self._arguments, environ, timeout=START_SECONDS)
        return self._actor

    def _begin(self, task: Task) -> str:
        name, seed = _name_and_seed(task)
        self._forget_episode()
        try:
            page = self._session().call("begin", name, seed, self._max_chars, timeout=BEGIN_SECONDS)
        except TaskError:
            raise
        except Exception as error:
            self._kill()
            raise EnvironmentFault(f"BrowserGym cannot set up {name!r}: {error}", kind="browsergym") from error
        self._goal = page.goal
        return self._shown(f"Goal: {page.goal}\n\n{self._rules}", page)

    def _act(self, action: str) -> Outcome:
        call = find_action_call(action)
        if isinstance(call, LiteralCall):
            positional, keyword = [_plain(value) for value in call.positional], call.keyword
        else:
            positional, keyword = [], call.arguments
        keyword = {key: _plain(value) for key, value in keyword.items()}
        self._error = ""
        if self._actor is None:
            raise EnvironmentFault("the browser of this episode was closed", kind="closed")
        try:
            page: BrowserGymPage = self._actor.call(
                "act", call.name, positional, keyword, self._max_chars, timeout=STEP_SECONDS
            )
        except (InvalidAction, EnvironmentFault):
            raise
        except Exception as error:
            return self._lost(error, call.name)
        self._acted = self._acted or call.name != "noop"
        if not math.isfinite(page.reward):
            raise EnvironmentFault(f"{self.task.task_id} returned the reward {page.reward!r}", kind="invalid_result")
        self._error, self._total = page.error, self._total + page.reward
        head = f"Goal: {self._goal}\n"
        if page.error:
            head = f"The last action failed: {page.error[:2000]}\n{head}"
        solved = page.done and self._total >= 1.0
        return Outcome(self._shown(head, page), {"task": page.reward}, page.done, solved)

    def _lost(self, error: Exception, action: str) -> Outcome:
        """End an episode whose browser hangs or fails.

        Raises:
            EnvironmentFault: The model cannot have caused it.
        """
        words = f"BrowserGym failed in {action} of the task {self.task.task_id!r}: {type(error).__name__}: {error}"
        self._kill()
        # Pages do not run in the worker, so a worker that was killed was killed from outside.
        if isinstance(error, WorkerDied) or (action == "noop" and not self._acted):
            raise EnvironmentFault(words, kind="browsergym") from error
        _logger.warning("%s; the episode ends unsolved", words)
        return Outcome(LOST, {"task": 0.0}, True, info={"stop_reason": StopReason.SERVER_LOST.value})

    @property
    def _max_chars(self) -> int:
        return int(self.observation_space.max_length)  # type: ignore[attr-defined]

    def _shown(self, head: str, page: BrowserGymPage) -> str:
        self._url = page.url
        text = f"{head}\n{page.text}"
        return text if len(text) < self._max_chars else text[: max(0, self._max_chars - len(_CUT))] + _CUT

    def _add_info(self, info: dict[str, Any]) -> None:
        info["url"] = self._url[:2000]
        # A reply without an action leaves that of the turn before.
        info["action_error"] = "" if info["invalid_action"] else self._error

    def _kill(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            actor.kill()

    def close(self) -> None:
        """End the browser and its worker."""
        self._kill()


def _plain(value: Any) -> Any:
    """Return a literal with numbers as they were written."""
    if isinstance(value, WrittenNumber):
        return value.written
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _config(config: Mapping[str, Any] | None) -> str:
    for taken in _TAKEN:
        if taken in (config or {}):
            raise ValueError(f"config has {taken!r}, which rllm/BrowserGym-v0 sets itself")
    try:
        return json.dumps(dict(config or {}), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"config={config!r:.200} must be JSON types ({error})") from error


# Tasks


@dataclass(frozen=True)
class _SeedGenerator:
    name: str

    def __call__(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        seed = rng.randrange(_SEEDS)
        return f"{self.name}, seed {seed}", {"name": self.name, "seed": seed}


def _tasks(task: str | tuple[str, ...], split: str | None, seed: int, size: int | None) -> TaskSource:
    if isinstance(task, str):
        return ProceduralTaskset(
            _SeedGenerator(task),
            name=f"browsergym/{task}",
            split=split,
            seed=seed,
            size=1_000_000 if size is None else size,
        )
    rng = random.Random(seed)
    # Divided by name alone: the seed changes little or nothing in most tasks.
    rows = [Task(name, name, {"name": name, "seed": rng.randrange(_SEEDS)}) for name in task]
    tasks = Taskset.from_rows(rows, name="browsergym", split=split)
    return tasks if size is None else tasks.take(size)


def _name_and_seed(task: Task) -> tuple[str, int]:
    name, seed = task.data.get("name"), task.data.get("seed")
    if not isinstance(name, str) or not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < _SEEDS:
        raise TaskError(
            f"task {task.task_id!r} has the data {dict(task.data)!r:.200}; it must be {{'name': 'miniwob.click-test', "
            "'seed': a whole number from 0 to 2**32 - 1}"
        )
    return name, seed


@PerProcess
def _pool() -> WorkerPool:
    return WorkerPool(
        "process",
        max_workers=1_000_000,  # no limit: one per environment
        name="browsergym",
        preload=("rllm_gym.integrations.browsergym.session", "browsergym.core.env", "browsergym.utils.obs"),
    )

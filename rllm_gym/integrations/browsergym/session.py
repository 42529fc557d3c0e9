"""BrowserGym's own environment of one episode after the other, in a worker process.

Playwright's synchronous interface is bound to one thread, and some of its calls have no deadline: they do not return
while the page runs an endless script. The process is killed then, with its browser.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

from rllm_gym.core import EnvironmentFault, InvalidAction, TaskError
from rllm_gym.envs import miniwob_folder
from rllm_gym.runtime.scratch import scratch_directory

_PACKAGE = re.compile(r"[a-z]+(?=\.|$)")
_UPLOADS = ("upload_file", "mouse_upload_file")
"""Actions that are never offered: they read any file of this machine."""
_WEB = ("http://", "https://")
MAX_WAIT_MS = 10_000
ACTION_MS = 10_000
"""How long an action waits for its element to be usable. BrowserGym's 500 ms are too short for a busy machine, on which
correct actions would fail."""


@dataclass(frozen=True, slots=True)
class BrowserGymPage:
    """What is new after a reset or an action.

    Attributes:
        goal: The goal of the task.
        text: The tabs, new messages and the page.
        url: The URL of the active page.
        error: Why the action failed, ``""`` if it did not.
        reward: BrowserGym's reward of the action.
        done: Whether the task is over.
    """

    goal: str
    text: str
    url: str
    error: str = ""
    reward: float = 0.0
    done: bool = False


class ChatLog:
    """Replaces BrowserGym's chat, which opens a second browser to show the messages."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.messages: list[dict[str, Any]] = []

    def add_message(self, role: str, msg: str) -> None:
        if role != "info":
            self.messages.append({"role": role, "timestamp": 0.0, "message": msg})

    def close(self) -> None:
        """Do nothing: there is no browser to close."""


class BrowserGymSession:
    """One task at a time of BrowserGym.

    Args:
        config: Further arguments of BrowserGym's ``BrowserEnv``, as JSON.
        subsets: Names of BrowserGym's sets of actions.
        executable: The Chromium to start.
        environ: Environment variables, in which BrowserGym finds the servers of its tasks.
    """

    def __init__(self, config: str, subsets: Sequence[str], executable: str, environ: Mapping[str, str]) -> None:
        os.environ.update(environ)
        tempfile.tempdir = os.environ["TMPDIR"] = str(scratch_directory("browsergym-"))  # the browser's profiles
        module: Any = importlib.import_module("browsergym.core.env")
        module.Chat = ChatLog
        self._functions = importlib.import_module("browsergym.core.action.functions")
        self._utils = importlib.import_module("browsergym.utils.obs")
        highlevel = importlib.import_module("browsergym.core.action.highlevel")
        actions = highlevel.HighLevelActionSet(subsets=list(subsets), multiaction=False)
        self._includes = with_action_timeout(actions.python_includes)
        self._actions = {name: action for name, action in actions.action_set.items() if name not in _UPLOADS}
        self._config = json.loads(config)
        self._config["pw_chromium_kwargs"] = {
            "executable_path": executable,
            **self._config.get("pw_chromium_kwargs", {}),
        }
        self._task = ""
        self._env: Any = None
        self._read = 0

    def describe_actions(self) -> str:
        """Return the actions as text for a prompt, one per line."""
        lines = []
        for action in self._actions.values():
            example = f" For example {action.examples[0]}" if action.examples else ""
            lines.append(f"{action.signature}: {' '.join(action.description.split())}{example}")
        return "\n".join(lines)

    def begin(self, task: str, seed: int, chars: int) -> BrowserGymPage:
        """Start an episode.

        Args:
            task: Name of the task, such as ``"miniwob.click-test"``.
            seed: BrowserGym's seed.
            chars: Maximum characters of text.

        Raises:
            TaskError: The goal cannot be shown as text.
        """
        if task != self._task:
            self.close()
            check_task(task)
            self._env = gymnasium.make(
                f"browsergym/{task}", disable_env_checker=True, action_mapping=self._code, **self._config
            )
            self._task = task
        observation, _ = self._env.reset(seed=seed)
        self._read = len(observation["chat_messages"])
        if any(part.get("type") != "text" for part in observation["goal_object"]):
            raise TaskError(f"the goal of {task!r} has pictures, which this environment does not show")
        return self._page(observation, chars)

    def act(self, name: str, positional: Sequence[Any], keyword: Mapping[str, Any], chars: int) -> BrowserGymPage:
        """Take one action, whose numbers are given as they were written.

        Raises:
            InvalidAction: There is no such action, or its arguments are wrong; nothing was done.
            EnvironmentFault: The browser has ended.
        """
        call = self._call(name, positional, keyword)
        try:
            observation, reward, terminated, truncated, _ = self._env.step(call)
            return self._page(observation, chars, float(reward), bool(terminated or truncated))
        except Exception as error:
            browser = self._env.unwrapped.browser
            if browser is None or not browser.is_connected():
                raise EnvironmentFault(f"the browser has ended ({error})", kind="browser_died") from error
            raise

    def close(self) -> None:
        env, self._env, self._task = self._env, None, ""
        if env is not None:
            env.close()

    def _code(self, call: str) -> str:
        # As HighLevelActionSet.to_python_code, for a call that _call() has written.
        return f"{self._includes}\n{call}\n"

    def _call(self, name: str, positional: Sequence[Any], keyword: Mapping[str, Any]) -> str:
        """Return an action as Python: the name of a known function, and literals."""
        if name not in self._actions:
            near = difflib.get_close_matches(name, self._actions, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise InvalidAction(f"There is no action {name[:60]!r}.{hint} The actions are {', '.join(self._actions)}.")
        signature = inspect.signature(getattr(self._functions, name))
        try:
            bound = signature.bind(*positional, **keyword).arguments
        except TypeError as error:
            raise InvalidAction(f"{name}: {error}. It is {self._actions[name].signature}.") from None
        arguments = {key: _argument(signature.parameters[key].annotation, value) for key, value in bound.items()}
        url = arguments.get("url")
        if url is not None and not str(url).lower().startswith(_WEB):
            raise InvalidAction(f"{name} opens only http:// and https:// URLs; {str(url)[:60]!r} is none.")
        if name == "noop" and not 0 <= _number(arguments.get("wait_ms", 0)) <= MAX_WAIT_MS:
            raise InvalidAction(f"noop waits for at most {MAX_WAIT_MS} ms.")
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"

    def _page(
        self, observation: Mapping[str, Any], chars: int, reward: float = 0.0, done: bool = False
    ) -> BrowserGymPage:
        messages = observation["chat_messages"][self._read :]
        self._read = len(observation["chat_messages"])
        lines = [f"The user says: {item['message']}" for item in messages if item["role"] == "user"]
        active = int(observation["active_page_index"][0])
        pages = zip(observation["open_pages_titles"], observation["open_pages_urls"])
        for index, (title, url) in enumerate(pages):
            lines.append(f"Tab {index}{' (active)' if index == active else ''}: {title[:200]!r} {url[:500]}")
        if observation["focused_element_bid"]:
            lines.append(f"Focused element: [{observation['focused_element_bid']}]")
        tree = self._utils.flatten_axtree_to_str(
            observation["axtree_object"],
            observation["extra_element_properties"],
            with_clickable=True,
            ignored_roles=("LineBreak", "InlineTextBox"),  # lines of a text repeat it
        )
        lines += ["Page:", tree]
        return BrowserGymPage(
            goal=observation["goal"],
            text="\n".join(lines)[:chars],
            url=observation["url"],
            error=observation["last_action_error"],
            reward=reward,
            done=done,
        )


def with_action_timeout(code: str) -> str:
    """Return the code of BrowserGym's actions with :data:`ACTION_MS` instead of its own limit."""
    return code.replace("timeout=500", f"timeout={ACTION_MS}")


def check_task(task: str) -> None:
    """Check that BrowserGym has a task, and import its package. Runs in a worker.

    Raises:
        ValueError: It has not; the message names similar tasks or the package to install.
    """
    package = _PACKAGE.match(task)
    if package is None:
        raise ValueError(f"task={task!r} must be the name of a task, such as 'miniwob.click-test'")
    importlib.import_module("browsergym.core")  # registers "openended"
    if package[0] == "rllm":
        importlib.import_module("rllm_gym.integrations.browsergym.tasks").register_tasks()
    elif package[0] != task:
        if package[0] == "miniwob" and "MINIWOB_URL" not in os.environ:
            _use_pages_of_miniwob()
        name = f"browsergym.{package[0]}"
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise ValueError(f"task={task!r} needs its package: pip install browsergym-{package[0]}") from None
    known = [env_id.removeprefix("browsergym/") for env_id in gymnasium.registry if env_id.startswith("browsergym/")]
    if task not in known:
        similar = difflib.get_close_matches(task, known, n=3)
        raise ValueError(f"BrowserGym has no task {task!r}; similar names: {', '.join(similar) or 'none'}")


def _use_pages_of_miniwob() -> None:
    folder = miniwob_folder()
    if folder is None:
        raise ValueError("set MINIWOB_URL to the URL of the pages of MiniWoB++, or run pip install 'miniwob>=1.1,<2'")
    os.environ["MINIWOB_URL"] = f"{(folder / 'miniwob').as_uri()}/"


def _argument(annotation: Any, value: Any) -> Any:
    """Return an argument in the type that an action declares: ``click(12)`` means ``click("12")``."""
    if isinstance(value, list):
        return [_argument(str, item) for item in value]
    if annotation is float or annotation is int:
        return annotation(_number(value))
    if isinstance(value, bool) or value is None:
        return value
    return str(value)


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidAction(f"{str(value)[:60]!r} is not a number.")
    return number

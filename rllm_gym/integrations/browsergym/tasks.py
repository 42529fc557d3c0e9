"""The built-in web tasks as tasks of BrowserGym, for AgentLab and other users of its environments.

from rllm_gym.integrations.browsergym.tasks import register_tasks

register_tasks()
env = gymnasium.make("browsergym/rllm.shop.buy", task_kwargs={"difficulty": 2})
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium

from rllm_gym.core import EnvironmentFault
from rllm_gym.core.async_env import shared_loop
from rllm_gym.envs.task_templates import TemplateTaskRow, choose_templates
from rllm_gym.envs.web import sites as built_in
from rllm_gym.envs.web.browser.executable import find_chromium
from rllm_gym.envs.web.browser.network_policy import NetworkPolicy
from rllm_gym.envs.web.browser.proxy import NetworkProxy
from rllm_gym.envs.web.sites.task import WebTaskTemplate
from rllm_gym.envs.web.task_instance import SiteTaskInstance, WebEpisodeEnd

try:
    from browsergym.core.env import BrowserEnv
    from browsergym.core.task import AbstractBrowserTask
except ModuleNotFoundError as error:
    message = "BrowserGym is not installed: pip install 'rllm-gym[browsergym]'"
    raise ModuleNotFoundError(message, name="browsergym") from error


def register_tasks(
    templates: str | WebTaskTemplate | Iterable[str | WebTaskTemplate] | None = None,
    *,
    sites: str | Iterable[str] | None = None,
) -> list[str]:
    """Register web tasks with Gymnasium as ``browsergym/rllm.SITE.NAME``, and return these ids.

    Each process registers them for itself; a task of AgentLab runs in another one.

    Args:
        templates: Names of built-in templates, or your own; ``None`` for all built-in ones.
        sites: Only those of these sites.

    Raises:
        TaskError: There is no such template or site.
    """
    chosen = choose_templates(built_in.templates(), WebTaskTemplate, templates, sites, "site")
    for name, template in chosen.items():
        gymnasium.registry.pop(_id(name), None)
        gymnasium.register(id=_id(name), entry_point=functools.partial(make_env, template))
    return [_id(name) for name in chosen]


def _id(template: str) -> str:
    return f"browsergym/rllm.{template.replace('/', '.')}"


def make_env(
    template: WebTaskTemplate,
    *,
    headless: bool = True,
    pw_chromium_kwargs: Mapping[str, Any] | None = None,
    pw_context_kwargs: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> BrowserEnv:
    """Return BrowserGym's environment for a template. Its browser reaches the sites of the task and nothing else.

    Args:
        template: The template.
        headless: As of ``BrowserEnv``; ``False`` needs the Chromium of ``playwright install``.
        pw_chromium_kwargs: As of ``BrowserEnv``; if headless, the Chromium is by default that of ``rllm/Web-v0``.
        pw_context_kwargs: As of ``BrowserEnv``.
        **arguments: As of ``BrowserEnv``.

    Raises:
        BrowserFault: No Chromium was found; the message names a solution.
    """
    chromium = dict(pw_chromium_kwargs or {})
    if headless and "executable_path" not in chromium:
        chromium["executable_path"] = str(find_chromium())
    policy = NetworkPolicy()
    proxy = NetworkProxy(policy)
    shared_loop().run(proxy.start())
    context = {
        **(pw_context_kwargs or {}),
        "proxy": {"server": f"http://127.0.0.1:{proxy.port}"},
        "service_workers": "block",
    }
    task = functools.partial(SiteTask, template=template, policy=policy)
    env = BrowserEnv(task, headless=headless, pw_chromium_kwargs=chromium, pw_context_kwargs=context, **arguments)
    weakref.finalize(env, _close, proxy)
    return env


def _close(proxy: NetworkProxy) -> None:
    shared_loop().call_soon(proxy.close)


class SiteTask(AbstractBrowserTask):  # type: ignore[misc]
    """A task on the built-in sites, graded as in ``rllm/Web-v0`` when the agent sends its first message to the user.

    The same as the row ``{"template": …, "seed": seed, "difficulty": difficulty}`` of ``rllm/Web-v0``.

    Args:
        seed: Seed of the sites and of the task; without one, a random one.
        template: The template.
        policy: Of the proxy that the browser uses.
        difficulty: A level of the template; its lowest by default.

    Raises:
        TaskError: The template has no such level.
    """

    def __init__(
        self, seed: int | None, template: WebTaskTemplate, policy: NetworkPolicy, difficulty: int | None = None
    ) -> None:
        super().__init__(seed)
        self.slow_mo, self.timeout = 0, 60_000  # the sites answer at once, but the machine may be busy
        seed = int(self.random.randint(2**31 - 1)) if seed is None else int(seed)
        level = min(template.difficulties) if difficulty is None else difficulty
        self._instance = SiteTaskInstance(template, TemplateTaskRow(template.name, seed, level))
        self._policy = policy
        policy.fault = None
        policy.allow(self._instance.sites, self._instance.origins)

    def setup(self, page: Any) -> tuple[str, dict[str, Any]]:
        # BrowserGym has no action for dialogs, and Playwright dismisses them: nothing could be confirmed.
        page.context.on("dialog", lambda dialog: dialog.accept())
        page.goto(self._instance.start)
        return self._instance.goal, {}

    def validate(
        self, page: Any, chat_messages: Sequence[Mapping[str, Any]]
    ) -> tuple[float, bool, str, dict[str, Any]]:
        """Return the reward, and whether the task is over.

        Raises:
            EnvironmentFault: A site failed.
        """
        fault: EnvironmentFault | None = self._policy.fault
        if fault is not None:
            raise fault
        end = _ending(chat_messages)
        return (0.0, False, "", {}) if end is None else (float(self._instance.is_solved(end)), True, "", {})


def _ending(messages: Sequence[Mapping[str, Any]]) -> WebEpisodeEnd | None:
    """Return how the agent ended the episode, or ``None``: its first message after the user's goal is its answer."""
    has_goal = False
    for message in messages:
        if message["role"] == "infeasible":
            return WebEpisodeEnd(infeasible=message["message"])
        if message["role"] == "assistant" and has_goal:
            return WebEpisodeEnd(answer=message["message"])
        has_goal = has_goal or message["role"] == "user"
    return None

"""rLLM's agents and environments for repositories and web pages, on top of ``rllm/SWE-v0`` and MiniWoB++."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium

from rllm_gym.agents import Action, BaseAgent
from rllm_gym.compat.agents import shown_messages
from rllm_gym.compat.environments import BaseEnv
from rllm_gym.compat.types import Step, Trajectory
from rllm_gym.core import TaskError

_MAX_TURNS = 1_000  # the engine counts the steps
_MINIWOB = re.compile(r"browsergym/miniwob\.([a-z0-9-]+)")

SWE_SYSTEM_PROMPT = """\
You are a programming agent. You are given the description of an issue and a shell in a repository, and you change the \
repository's source until the issue is resolved. You have these functions:

file_editor(command, path, file_text, old_str, new_str, insert_line, view_range): view, create and edit text files. \
command is one of view, create, str_replace, insert, undo_edit. old_str must occur exactly once.
execute_bash(command, timeout): run a command with bash in the repository.
finish(): submit the work.

Every reply consists of your reasoning and exactly one function call at its end, in this form:

<function=execute_bash>
<parameter=command>
git log --oneline -5
</parameter>
</function>
"""
SWEAGENT_SYSTEM_PROMPT = SWE_SYSTEM_PROMPT.replace("file_editor", "str_replace_editor").replace("finish()", "submit()")
MINIWOB_SYSTEM_PROMPT = """\
You work in a web browser to reach a goal. Every turn you see the page as an outline in which what can be acted on has \
a number, and you take one action.
"""
_THINK_FIRST = "Before the action, think step by step about the page and your past actions, in a line `Thought: …`.\n"


class _PageAgent(BaseAgent):
    """An agent that shows observations as text and acts with its reply.

    Args:
        system_prompt: The system prompt.
        accumulate_thinking: Whether later prompts contain the reasoning of earlier replies.
        full_conversation: Whether prompts contain all turns, or only the latest observation.
    """

    def __init__(self, system_prompt: str, *, accumulate_thinking: bool = True, full_conversation: bool = True) -> None:
        self.system_prompt = system_prompt
        self.accumulate_thinking = accumulate_thinking
        self.full_conversation = full_conversation
        self.reset()

    def reset(self) -> None:
        self._trajectory = Trajectory()
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": self.system_prompt}]
        self.step = 0
        self.current_observation: str | None = None

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        if self._trajectory.steps:
            step = self._trajectory.steps[-1]
            step.reward, step.done, step.info = reward, done, info
        self.current_observation = str(observation)
        self.messages.append({"role": "user", "content": self.current_observation + self._remark(info)})

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        thought, action, shown = self._parse(response)
        self.messages.append({"role": "assistant", "content": shown})
        self._trajectory.steps.append(
            Step(
                observation=self.current_observation,
                chat_completions=self.chat_completions,
                thought=thought,
                action=action,
                model_response=response,
            )
        )
        self.step += 1
        return Action(action)

    @abstractmethod
    def _parse(self, response: str) -> tuple[str, str, str]:
        """Return the thought, the action, and the reply as later prompts contain it."""

    def _remark(self, info: Mapping[str, Any]) -> str:
        return ""

    @property
    def chat_completions(self) -> list[dict[str, Any]]:
        messages = shown_messages(self.messages, accumulate_thinking=self.accumulate_thinking)
        if self.full_conversation:
            return messages
        replies = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
        # A reply that ends the conversation is kept with the observation that it answers.
        start = [0, *(at + 1 for at in replies if at + 1 < len(messages))][-1]
        return [messages[0], *messages[max(1, start) :]]

    @property
    def trajectory(self) -> Trajectory:
        return self._trajectory


class SWEAgent(_PageAgent):
    """Changes a repository with function calls in XML.

    Args:
        format_model_response: Whether later prompts contain only the thought and the call of a reply.
        scaffold: The names of the functions: ``"r2egym"`` (``file_editor``, ``finish``) or ``"sweagent"``
            (``str_replace_editor``, ``submit``).
    """

    def __init__(
        self, *, format_model_response: bool = False, scaffold: Literal["r2egym", "sweagent"] = "r2egym"
    ) -> None:
        if scaffold not in ("r2egym", "sweagent"):
            raise ValueError(f"scaffold={scaffold!r} is not one of 'r2egym', 'sweagent'")
        self.format_model_response = format_model_response
        self.scaffold = scaffold
        super().__init__(SWE_SYSTEM_PROMPT if scaffold == "r2egym" else SWEAGENT_SYSTEM_PROMPT)

    def _parse(self, response: str) -> tuple[str, str, str]:
        start = response.find("<function=")
        end = response.find("</function>", start)
        if start < 0 or end < 0:
            return response.strip(), "", response
        thought, action = response[:start].strip(), response[start : end + len("</function>")]
        return thought, action, f"{thought}\n\n{action}" if self.format_model_response else response

    def _remark(self, info: Mapping[str, Any]) -> str:
        left = info["max_steps"] - self.step - 1 if info.get("max_steps") else None
        if left is None:
            return ""
        return f"\nSteps Remaining: {left}" if left > 0 else "\nThis is the last step. Submit your work NOW."


class MiniWobAgent(_PageAgent):
    """Acts on web pages; the action is the last text in triple backticks.

    Args:
        use_html, use_axtree: One of them must be set: the environment's outline of the page is of both.
        use_accumulate_thinking: Whether later prompts contain the reasoning of earlier replies.
        cot_prompt: Whether the system prompt asks for a thought before the action.
        use_full_conversation: Whether prompts contain all turns, or only the latest page.
        chat_mode, use_screenshot, use_reward_shaping: Not supported.

    Raises:
        ValueError: An option is not supported; the message says what to use instead.
    """

    def __init__(
        self,
        chat_mode: bool = False,
        use_html: bool = True,
        use_axtree: bool = True,
        use_screenshot: bool = False,
        use_accumulate_thinking: bool = True,
        cot_prompt: bool = False,
        use_full_conversation: bool = True,
        use_reward_shaping: bool = False,
    ) -> None:
        for name, value in (("chat_mode", chat_mode), ("use_reward_shaping", use_reward_shaping)):
            if value:
                raise ValueError(f"{name}={value!r} is not supported; see docs/from-rllm.md")
        if use_screenshot or not (use_html or use_axtree):
            raise ValueError(
                f"use_screenshot={use_screenshot!r}, use_html={use_html!r}, use_axtree={use_axtree!r}: this agent sees "
                "pages as text; for screenshots use rllm_gym.agents.WebAgent"
            )
        super().__init__(
            MINIWOB_SYSTEM_PROMPT + _THINK_FIRST * bool(cot_prompt),
            accumulate_thinking=use_accumulate_thinking,
            full_conversation=use_full_conversation,
        )

    def _parse(self, response: str) -> tuple[str, str, str]:
        before, _, after = response.rpartition("```")
        thought, fence, action = before.rpartition("```")
        return (thought.strip(), action.strip(), response) if fence else (after, response, response)


class NativeEnv(BaseEnv):
    """An environment of this package with the interface of rLLM's.

    Args:
        env: The environment; :meth:`close` closes it.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = env
        self._final: float | None = None

    def reset(self) -> tuple[Any, dict[str, Any]]:
        self._final = None
        return self.env.reset()

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        action = action.action if isinstance(action, Action) else action
        observation, reward, terminated, truncated, info = self.env.step(str(action or ""))
        if terminated or truncated:
            self._final = float(reward)
        return observation, float(reward), terminated or truncated, info

    def close(self) -> None:
        self.env.close()

    @staticmethod
    def from_dict(info: dict[str, Any]) -> NativeEnv:
        raise NotImplementedError("use a subclass, or pass the environment's id as env_class=")


class SWEEnv(NativeEnv):
    """Change a repository so that hidden tests pass: ``rllm/SWE-v0`` with the task ``entry``.

    Args:
        entry: A row of SWE-bench, SWE-smith or R2E-Gym, which needs Docker for its image, or any other row that
            ``docs/swe.md`` describes.
        step_timeout: Seconds of a command.
        reward_timeout: Seconds of a run of the hidden tests.
        sandbox: See ``rllm/SWE-v0``.
        scaffold: As of the agent; the environment understands both.

    Raises:
        TaskError: The row is unusable; the message says why.
    """

    def __init__(
        self,
        entry: dict[str, Any] | str,
        step_timeout: float = 90,
        reward_timeout: float = 300,
        sandbox: Any = "auto",
        scaffold: Literal["r2egym", "sweagent"] = "r2egym",
    ) -> None:
        if scaffold not in ("r2egym", "sweagent"):
            raise ValueError(f"scaffold={scaffold!r} is not one of 'r2egym', 'sweagent'")
        from rllm_gym.envs.swe import SWEEnv as RepositoryEnv

        self.entry = json.loads(entry) if isinstance(entry, str) else entry
        env = RepositoryEnv(
            tasks=[self.entry],
            max_turns=_MAX_TURNS,
            sandbox=sandbox,
            command_timeout=step_timeout,
            grading_timeout=reward_timeout,
        )
        super().__init__(env)

    def compute_final_reward(self) -> float:
        """Return the reward of the work; what was not submitted is submitted."""
        if self._final is None:
            self.step("<function=submit></function>")
        assert self._final is not None
        return self._final

    @staticmethod
    def from_dict(info: dict[str, Any] | str) -> SWEEnv:
        row = json.loads(info) if isinstance(info, str) else dict(info)
        names = ("step_timeout", "reward_timeout", "sandbox", "scaffold")
        options = {name: row.pop(name) for name in names if name in row}
        return SWEEnv(row, **options)


class BrowserGymEnv(NativeEnv):
    """A task of MiniWoB++ on the pages of the package ``miniwob``, by BrowserGym's id.

    Args:
        env_id: Such as ``"browsergym/miniwob.click-test"``.

    Raises:
        TaskError: There is no such task here.
    """

    def __init__(self, env_id: str) -> None:
        from rllm_gym.envs.web import MiniWoBEnv

        named = _MINIWOB.fullmatch(env_id)
        if named is None:
            raise TaskError(
                f"env_id={env_id!r} must be a task of MiniWoB++, such as 'browsergym/miniwob.click-test'; for other "
                "pages use rllm/Web-v0"
            )
        super().__init__(MiniWoBEnv(task=named[1], max_turns=_MAX_TURNS))

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        text = str(action.action if isinstance(action, Action) else action)
        return super().step(text if "```" in text else f"```\n{text}\n```")

    @staticmethod
    def from_dict(info: dict[str, Any]) -> BrowserGymEnv:
        """Create the environment of a row. BrowserGym's other options, such as ``miniwob_url``, have no effect: the
        pages are not served over a network.
        """
        if not isinstance(info.get("env_id"), str):
            raise TaskError(f"a BrowserGym row needs 'env_id'; its keys are {sorted(map(str, info))}")
        return BrowserGymEnv(info["env_id"])

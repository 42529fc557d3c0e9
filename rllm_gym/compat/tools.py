"""rLLM's tool agent and tool environment."""

from __future__ import annotations

import inspect
import json
import uuid
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

from rllm_gym.agents import Action, BaseAgent
from rllm_gym.compat.environments import BaseEnv, reward_of
from rllm_gym.compat.python_tool import PythonTool
from rllm_gym.compat.rewards import RewardFunction, zero_reward
from rllm_gym.compat.tool import Tool, ToolOutput
from rllm_gym.compat.tool_calls import ToolCall, parser
from rllm_gym.compat.types import Step, Trajectory

TOOL_SYSTEM_PROMPT = (
    "You are a tool agent. You are given a task to complete. You have a set of tools at your disposal. Before you use "
    "the tools, output your thoughts.\n"
)


class MultiTool:
    """The tools of an agent or environment by name.

    Args:
        tools: Names of built-in tools: ``"python"``, see :class:`~rllm_gym.compat.python_tool.PythonTool`.
        tool_map: Tools by name: ``Tool`` classes, tools, or plain functions.

    Raises:
        ValueError: There is no such built-in tool, or both arguments are given.
        SandboxUnavailable: The tool ``"python"`` has no sandbox on this machine.
    """

    def __init__(self, tools: list[str] | None = None, tool_map: Mapping[str, Any] | None = None) -> None:
        if tools is not None and tool_map is not None:
            raise ValueError("pass tools or tool_map, not both")
        entries = {name: _built_in(name) for name in tools} if tools else tool_map or {}
        self.tool_map = {name: _tool(name, entry) for name, entry in entries.items()}

    @property
    def json(self) -> list[dict[str, Any]]:
        return [tool.json for tool in self.tool_map.values()]

    def __call__(self, *, tool_name: str, arguments: Mapping[str, Any]) -> ToolOutput:
        tool = self.tool_map.get(tool_name)
        if tool is None:
            return ToolOutput(tool_name, error=f"there is no tool {tool_name!r}; there are {sorted(self.tool_map)}")
        return tool(**arguments)  # type: ignore[no-any-return]


class ToolAgent(BaseAgent):
    """Lists the tools in its system prompt and converts a reply to a list of tool calls.

    A reply without a call becomes a call of ``finish`` with the reply as its ``response``.
    """

    uses_tools: ClassVar[bool] = False

    def __init__(
        self,
        system_prompt: str = TOOL_SYSTEM_PROMPT,
        parser_name: str = "qwen",
        tools: list[str] | None = None,
        tool_map: Mapping[str, Any] | None = None,
    ) -> None:
        self.system_prompt = system_prompt
        self.tools = MultiTool(tools, tool_map)
        self.tool_parser = parser(parser_name)
        self.tools_prompt = self.tool_parser.get_tool_prompt(json.dumps(self.tools.json, indent=2))
        self.reset()

    def reset(self) -> None:
        self._trajectory = Trajectory()
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": self.system_prompt + self.tools_prompt}]
        self.current_observation: Any = None

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        self.messages += _messages(observation)
        self.current_observation = observation
        if self._trajectory.steps:
            step = self._trajectory.steps[-1]
            step.reward, step.done, step.info = reward, done, info

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        calls = self.tool_parser.parse(response) or [ToolCall("finish", {"response": response})]
        action = [
            {
                "id": str(uuid.uuid4()),
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for call in calls
        ]
        shown = self.chat_completions
        self.messages.append({"role": "assistant", "content": response})
        self._trajectory.steps.append(
            Step(observation=self.current_observation, chat_completions=shown, model_response=response, action=action)
        )
        return Action(action)

    @property
    def chat_completions(self) -> list[dict[str, Any]]:
        return self.messages

    @property
    def trajectory(self) -> Trajectory:
        return self._trajectory


class ToolEnvironment(BaseEnv):
    """Executes tool calls until the model answers with a text or a ``finish`` call, or until ``max_steps``."""

    def __init__(
        self,
        task: dict[str, Any] | None = None,
        tools: list[str] | None = None,
        tool_map: Mapping[str, Any] | None = None,
        reward_fn: RewardFunction | None = None,
        max_steps: int = 10,
    ) -> None:
        if reward_fn is None:
            warnings.warn("no reward_fn: every reward will be 0", stacklevel=2)
        self.task = task
        self.tools = MultiTool(tools, tool_map)
        self.reward_fn = reward_fn or zero_reward
        self.max_steps = max_steps
        self.step_count = 0

    def reset(self) -> tuple[Any, dict[str, Any]]:
        self.step_count = 0
        return self.task, {}

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        self.step_count += 1
        calls = [action] if isinstance(action, dict) else action or []
        finish = None
        if not isinstance(calls, str):
            finish = next((call for call in calls if call.get("function", {}).get("name") == "finish"), None)
        if isinstance(calls, str) or finish is not None or self.step_count >= self.max_steps:
            answer = calls if isinstance(calls, str) else _answer(finish, calls)
            output = self.reward_fn(task_info=self.task or {}, action=answer)
            info = {
                "response": action,
                "metadata": getattr(output, "metadata", {}),
                "is_correct": getattr(output, "is_correct", None),
            }
            return {}, reward_of(output), True, info
        return {"tool_outputs": self._execute_tool_calls(calls)}, 0.0, False, {"response": action, "metadata": {}}

    def _execute_tool_calls(self, tool_calls: list[dict[str, Any]]) -> dict[str, str]:
        """Return the output of each call by its id; as in rLLM, a subclass may override it."""
        return {str(call.get("id", number)): self._execute(call) for number, call in enumerate(tool_calls)}

    def _execute(self, call: dict[str, Any]) -> str:
        function = call.get("function", {})
        arguments = _arguments(function.get("arguments", {}))
        if arguments is None:
            return "Error: the arguments are not a JSON object"
        return self.tools(tool_name=str(function.get("name")), arguments=arguments).to_string()

    @staticmethod
    def from_dict(env_args: dict[str, Any]) -> ToolEnvironment:
        row = dict(env_args)
        options = {name: row.pop(name, None) for name in ("tools", "tool_map", "reward_fn")}
        max_steps = row.pop("max_steps", 10)
        return ToolEnvironment(task=row, max_steps=max_steps, **options)


def _answer(finish: dict[str, Any] | None, calls: Any) -> str:
    if finish is None:
        return str(calls)
    # The arguments of a finish call by the model are JSON text, which may be anything.
    arguments = _arguments(finish["function"].get("arguments", {}))
    return str((arguments or {}).get("response", ""))


def _arguments(arguments: Any) -> dict[str, Any] | None:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    return arguments if isinstance(arguments, dict) else None


def _messages(observation: Any) -> list[dict[str, Any]]:
    if isinstance(observation, Mapping):
        if "question" in observation:
            return [{"role": "user", "content": observation["question"]}]
        outputs = observation.get("tool_outputs", {})
        return [{"role": "tool", "content": text, "tool_call_id": call} for call, text in outputs.items()]
    return [{"role": "user", "content": str(observation)}] if observation else []


def _built_in(name: str) -> type[Tool]:
    if name != "python":
        raise ValueError(
            f"tools={[name]!r}: the only built-in tool is 'python'; pass others as tool_map={{name: ToolClass or "
            "function}; see docs/from-rllm.md"
        )
    return PythonTool


def _tool(name: str, entry: Any) -> Any:
    if isinstance(entry, type):
        return entry(name=name)
    return (
        Tool(name=name, description=inspect.getdoc(entry) or name, function=entry)
        if inspect.isroutine(entry)
        else entry
    )

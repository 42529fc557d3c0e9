"""rLLM's tool agent and tool environment."""

from __future__ import annotations

import inspect
import json
import logging
import uuid
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from rllm_gym.agents import Action, BaseAgent
from rllm_gym.compat.environments import BaseEnv, reward_of
from rllm_gym.compat.python_tool import PythonTool
from rllm_gym.compat.rewards import RewardFunction, zero_reward
from rllm_gym.compat.tool import Tool, ToolOutput
from rllm_gym.compat.tool_calls import ToolCall, get_tool_parser
from rllm_gym.compat.types import Step, Trajectory

_PARALLEL_CALLS = 8
_log = logging.getLogger(__name__)

TOOL_SYSTEM_PROMPT = (
    "You are a tool agent. You are given a task to complete. You have a set of tools at your disposal. Before you use "
    "the tools, output your thoughts.\n"
)
SEARCH_SYSTEM_PROMPT = """\
You are a helpful assistant that answers questions with the help of a search tool.

- Search for what you do not know for sure, in short queries. Split a question that needs several facts into one \
search for each, and use what you have found in the next query.
- Judge whether the results answer the question; if they do not, search again with other words.
- When you know the answer, give it in \\boxed{}, as briefly as possible: a name, a number, a date, yes or no.
"""


class ToolRegistry(dict[str, type[Tool]]):
    """Tool classes by the names that ``tools=[…]`` may contain."""

    def register(self, name: str, tool_cls: type[Tool]) -> None:
        self[name] = tool_cls

    def register_all(self, tools_dict: Mapping[str, type[Tool]]) -> None:
        self.update(tools_dict)

    def __setitem__(self, name: str, tool_cls: type[Tool]) -> None:
        if not (isinstance(tool_cls, type) and issubclass(tool_cls, Tool)):
            raise TypeError(f"tool {name!r}: {tool_cls!r} is not a subclass of Tool")
        super().__setitem__(name, tool_cls)

    def update(self, *tools: Any, **named: Any) -> None:
        for name, tool_cls in dict(*tools, **named).items():
            self[name] = tool_cls

    def instantiate(self, name: str, *args: Any, **kwargs: Any) -> Tool | None:
        """Create the tool of this name; ``None`` if there is none."""
        return self[name](*args, **kwargs) if name in self else None

    def unregister(self, name: str) -> bool:
        """Remove a tool. Return whether it existed."""
        return self.pop(name, None) is not None

    def list_tools(self) -> list[str]:
        return list(self)

    def to_dict(self) -> dict[str, type[Tool]]:
        return self


tool_registry = ToolRegistry(python=PythonTool)


class MultiTool(Tool):
    """The tools of an agent or environment by name.

    Args:
        tools: Names in :data:`tool_registry`, such as ``"python"``, see
            :class:`~rllm_gym.compat.python_tool.PythonTool`.
        tool_map: Tools by name: ``Tool`` classes, tools, or plain functions.

    Raises:
        ValueError: There is no such tool, or both arguments are given.
        SandboxUnavailable: The tool ``"python"`` has no sandbox on this machine.
    """

    def __init__(self, tools: list[str] | None = None, tool_map: Mapping[str, Any] | None = None) -> None:
        _check_one(tools, tool_map)
        entries = {name: _registered(name) for name in tools or ()} if tool_map is None else tool_map
        self.name, self.description = "multi_tool", "several tools"
        self.tools = list(entries)
        self.tool_map = {name: _tool(name, entry) for name, entry in entries.items()}

    @property
    def json(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return [tool.json for tool in self.tool_map.values()]

    def forward(self, /, *args: Any, tool_name: str, **kwargs: Any) -> ToolOutput:
        """Call the tool of this name."""
        tool = self.tool_map.get(tool_name)
        if tool is None:
            return ToolOutput(tool_name, error=f"there is no tool {tool_name!r}; there are {sorted(self.tool_map)}")
        # The arguments are the model's, so that use_async= must not be an option of the call.
        call: Callable[..., ToolOutput] = tool.call_sync if isinstance(tool, Tool) else tool
        return call(*args, **kwargs)


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
        self.tools = _multi_tool(tools, tool_map)
        self.tool_parser = get_tool_parser(parser_name)()
        self.tools_prompt = self.tool_parser.get_tool_prompt(json.dumps(self.tools.json, indent=2))
        self.reset()

    def reset(self) -> None:
        self._trajectory = Trajectory()
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": self.system_prompt + self.tools_prompt}]
        self.current_observation: Any = None

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        self.messages += self._format_observation_as_messages(observation)
        self.current_observation = observation
        if self._trajectory.steps:
            step = self._trajectory.steps[-1]
            step.reward, step.done, step.info = reward, done, info

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        action = [
            {
                "id": str(uuid.uuid4()),
                "type": "function",
                "function": {
                    "name": call["name"],
                    "arguments": json.dumps(call["arguments"], ensure_ascii=False),
                },
            }
            for call in self._calls(response)
        ]
        shown = self.chat_completions
        self.messages.append({"role": "assistant", "content": response})
        self._trajectory.steps.append(
            Step(observation=self.current_observation, chat_completions=shown, model_response=response, action=action)
        )
        return Action(action)

    def _calls(self, response: str) -> list[dict[str, Any]]:
        try:
            calls = self.tool_parser.parse(response)
        except Exception as error:  # of a parser of the user's, which must not end the episode
            _log.warning("the tool parser failed on a reply: %r", error)
            calls = []
        return [call.to_dict() for call in calls or [ToolCall("finish", {"response": response})]]

    def _format_observation_as_messages(self, obs: Any) -> list[dict[str, Any]]:
        """Return the messages for an observation; as in rLLM, a subclass may override it."""
        if isinstance(obs, Mapping):
            if "question" in obs:
                return [{"role": "user", "content": obs["question"]}]
            outputs = obs.get("tool_outputs", {})
            return [{"role": "tool", "content": text, "tool_call_id": call} for call, text in outputs.items()]
        return [{"role": "user", "content": str(obs)}] if obs else []

    @property
    def chat_completions(self) -> list[dict[str, Any]]:
        return self.messages

    @property
    def trajectory(self) -> Trajectory:
        return self._trajectory


class MCPToolAgent(ToolAgent):
    """A :class:`ToolAgent` with the tools of an MCP server, :attr:`MCPConnectionManager.tool_map`."""

    def __init__(
        self,
        system_prompt: str = TOOL_SYSTEM_PROMPT,
        parser_name: str = "qwen",
        tool_map: Mapping[str, Tool] | None = None,
    ) -> None:
        super().__init__(system_prompt, parser_name, tool_map=tool_map)


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
            warnings.warn("No reward function specified, will get 0 reward.", stacklevel=2)
        self.task = task
        self.tools = _multi_tool(tools, tool_map)
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
        with ThreadPoolExecutor(_PARALLEL_CALLS) as executor:
            outputs = list(executor.map(self._execute, tool_calls))
        ids = [str(call.get("id", number)) for number, call in enumerate(tool_calls)]
        return dict(zip(ids, outputs, strict=True))

    def _execute(self, call: dict[str, Any]) -> str:
        function = call.get("function", {})
        arguments = _arguments(function.get("arguments", {}))
        if arguments is None:
            return "Error: the arguments are not a JSON object"
        if "tool_name" in arguments:  # an argument of forward()
            return "Error: the tool has no argument 'tool_name'"
        return self.tools.forward(tool_name=str(function.get("name")), **arguments).to_string()

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


def _check_one(tools: Any, tool_map: Any) -> None:
    if tools is not None and tool_map is not None:
        raise ValueError("Cannot specify both 'tools' and 'tool_map' parameters")


def _multi_tool(tools: list[str] | None, tool_map: Mapping[str, Any] | None) -> MultiTool:
    _check_one(tools, tool_map)
    return MultiTool(tools=tools or []) if tool_map is None else MultiTool(tool_map=tool_map)


def _registered(name: str) -> type[Tool]:
    if name not in tool_registry:
        raise ValueError(
            f"tools={[name]!r}: the registered tools are {sorted(tool_registry)}; register it with "
            "tool_registry.register(name, ToolClass), or pass tool_map={name: ToolClass or function}; see "
            "docs/from-rllm.md"
        )
    return tool_registry[name]


def _tool(name: str, entry: Any) -> Any:
    if isinstance(entry, type):
        return entry(name=name)
    return (
        Tool(name=name, description=inspect.getdoc(entry) or name, function=entry)
        if inspect.isroutine(entry)
        else entry
    )

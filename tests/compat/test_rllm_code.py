"""Code written for rLLM, as in its documentation, runs with only the import changed."""

from __future__ import annotations

import asyncio
import copy
import re
from typing import Any, ClassVar

import pytest
from parsing.checks import assert_all_raise

from rllm_gym.compat import (
    Action,
    AgentExecutionEngine,
    BaseAgent,
    BaseEnv,
    DatasetRegistry,
    Episode,
    MathAgent,
    MultiTool,
    MultiTurnEnvironment,
    RewardOutput,
    SingleTurnEnvironment,
    Step,
    Tool,
    ToolAgent,
    ToolEnvironment,
    ToolOutput,
    Trajectory,
    compute_pass_at_k,
    math_reward_fn,
)
from rllm_gym.core import EnvironmentFault
from rllm_gym.samplers import SamplingRequest, ScriptedSampler

# User code, as it was written for rLLM


class MyMathAgent(BaseAgent):
    """rLLM's own mathematics agent in its published form, including history rewriting."""

    def __init__(self, accumulate_thinking=True):
        self.instruction = "Let's think step by step and put the final answer within \\boxed{}."
        self._trajectory = Trajectory()
        self.messages = []
        self.accumulate_thinking = accumulate_thinking

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict, **kwargs):
        if not self.trajectory.steps:
            assert isinstance(observation, dict)
            formatted_observation = f"{observation['question']} {self.instruction}"
        elif observation is None or (isinstance(observation, dict) and observation == {}):
            cur_step = self.get_current_state()
            cur_step.reward, cur_step.done, cur_step.info = reward, done, info
            return
        else:
            formatted_observation = observation["feedback"]
        self.messages.append({"role": "user", "content": formatted_observation})
        self._trajectory.steps.append(Step(observation=formatted_observation))

    def update_from_model(self, response: str, **kwargs) -> Action:
        self.messages.append({"role": "assistant", "content": response})
        cur_step = self.get_current_state()
        cur_step.chat_completions = self.chat_completions
        cur_step.model_response = response
        if response.count("</think>") == 1:
            thought, sep, action = response.partition("</think>")
            cur_step.thought, cur_step.action = thought + sep, Action(action=action.strip())
        else:
            cur_step.thought, cur_step.action = None, Action(action=response.strip())
        return cur_step.action

    def reset(self) -> None:
        self._trajectory = Trajectory()
        self.messages = []

    @property
    def chat_completions(self) -> list[dict[str, str]]:
        messages = copy.deepcopy(self.messages)
        if not self.accumulate_thinking:
            for msg in messages[:-1]:
                if msg["role"] == "assistant":
                    _, sep, after = msg["content"].partition("</think>")
                    if sep:
                        msg["content"] = after
        return messages

    @property
    def trajectory(self) -> Trajectory:
        return self._trajectory

    def get_current_state(self) -> Step:
        assert self._trajectory.steps, "Trajectory should not be empty when get_current_state is called."
        return self._trajectory.steps[-1]


class GuessEnv(MultiTurnEnvironment):
    """Multi-turn, in the form of the documentation's ConversationEnv."""

    def __init__(self, task=None, max_turns=3):
        super().__init__(task=task, max_turns=max_turns)

    def get_reward_and_next_obs(self, task, action):
        return (1.0 if action == task["answer"] else 0.1), {"feedback": f"{action} is wrong, try again"}

    @staticmethod
    def from_dict(env_args: dict):
        return GuessEnv(task=env_args, max_turns=env_args.pop("max_turns", 3))


class LampEnv(BaseEnv):
    """A subclass of BaseEnv: 4-tuple steps, close, and compute_final_reward."""

    log: ClassVar[list[str]] = []

    def __init__(self, lamps: int):
        self.lamps, self.on = lamps, 0

    def reset(self):
        return {"question": f"{self.lamps} lamps"}, {}

    def step(self, action):
        if action == "broken":
            raise EnvironmentFault("the mains went out")
        self.on += 1
        return {"question": f"{self.on} are on"}, 0.0, action == "stop", {"on": self.on}

    def compute_final_reward(self):
        return self.on / self.lamps

    def close(self):
        self.log.append("closed")

    @staticmethod
    def from_dict(info: dict) -> LampEnv:
        return LampEnv(lamps=info["lamps"])


class FrozenLakeAgent(BaseAgent):
    """rLLM's walking agent in its published form: system prompt, fenced action, optional history."""

    def __init__(self, max_steps=None, use_accumulate_history=True):
        self.max_steps, self.accumulate_history = max_steps, use_accumulate_history
        self.reset()

    def update_from_env(self, observation, reward, done, info, **kwargs):
        if self._trajectory.steps:
            cur_step = self._trajectory.steps[-1]
            cur_step.reward, cur_step.done, cur_step.info = reward, done, info
        text = observation["question"]
        self.messages.append({"role": "user", "content": f"Current Observation ({self.step}):\n{text}"})
        self.current_observation = text

    def update_from_model(self, response, **kwargs):
        match = re.findall(r"```(.*?)```", response, re.DOTALL)
        self.messages.append({"role": "assistant", "content": response})
        self._trajectory.steps.append(
            Step(
                chat_completions=copy.deepcopy(self.chat_completions),
                thought=response,
                action=match[-1],
                model_response=response,
                observation=self.current_observation,
            )
        )
        self.step += 1
        return Action(action=match[-1])

    @property
    def chat_completions(self):
        return self.messages if self.accumulate_history else [self.messages[0], self.messages[-1]]

    @property
    def trajectory(self):
        return self._trajectory

    def reset(self):
        self._trajectory = Trajectory()
        self.messages = [{"role": "system", "content": "You are walking on a frozen lake."}]
        self.step = 0


def run(tasks: list[Any], reply: Any, rollouts: int = 1, **arguments: Any) -> list[Any]:
    sampler = ScriptedSampler(reply if callable(reply) else lambda request: reply)
    engine = AgentExecutionEngine(rollout_engine=sampler, n_parallel_agents=8, **arguments)
    return asyncio.run(engine.execute_tasks(tasks, num_rollouts_per_task=rollouts, temperature=0.6))


# Mathematics, as in the evaluation examples


def test_the_evaluation_script_of_the_documentation(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLLM_GYM_HOME", str(tmp_path))
    rows = [{"question": "2x + 5 = 13, x = ?", "ground_truth": "4"}, {"question": "15% of 80?", "ground_truth": "12"}]
    DatasetRegistry.register_dataset("compat_test", rows, "test")

    test_dataset = DatasetRegistry.load_dataset("compat_test", "test")
    assert test_dataset is not None
    engine = AgentExecutionEngine(
        agent_class=MyMathAgent,
        agent_args={},
        env_class=SingleTurnEnvironment,
        env_args={"reward_fn": math_reward_fn},
        engine_name="openai",
        rollout_engine=ScriptedSampler(lambda request: "<think>hm</think>\nIt is \\boxed{4}."),
        tokenizer=None,
        sampling_params={"temperature": 0.6, "top_p": 0.95, "model": "m"},
        max_response_length=16384,
        max_prompt_length=2048,
        n_parallel_agents=64,
    )
    results = asyncio.run(engine.execute_tasks(test_dataset.repeat(n=8)))
    table = compute_pass_at_k(results)

    assert len(results) == 16
    assert [trajectory.reward for trajectory in results].count(1.0) == 8
    assert all((trajectory.task["ground_truth"] == "4") == (trajectory.reward == 1.0) for trajectory in results)
    assert all(trajectory.steps[-1].thought == "<think>hm</think>" for trajectory in results)
    assert results[0].steps[-1].action == Action("It is \\boxed{4}.")
    assert results[0].steps[-1].done
    assert table[1].value == 0.5
    output = capsys.readouterr().out
    assert "Total unique problems: 2" in output
    assert "Average Pass@1 Accuracy: 0.5" in output
    assert "Average Pass@8 Accuracy: 0.5" in output


def test_the_model_sees_the_history_that_an_agent_rewrote() -> None:
    shown: list[list[str]] = []

    def reply(request: SamplingRequest) -> str:
        shown.append([str(message["content"]) for message in request.messages])
        return f"<think>thought {len(shown)}</think>guess {len(shown)}"

    (trajectory,) = run(
        [{"question": "which?", "answer": "guess 3"}],
        reply,
        agent_class=MyMathAgent,
        agent_args={"accumulate_thinking": False},
        env_class=GuessEnv,
        max_steps=3,
    )
    assert [step.action.action for step in trajectory.steps] == ["guess 1", "guess 2", "guess 3"]
    assert shown[2][1::2] == ["guess 1", "guess 2"]
    # The reward of a guess stays with that guess, though the agent begins its next step with the observation.
    assert [step.reward for step in trajectory.steps] == [0.1, 0.1, 1.0]
    assert trajectory.reward == pytest.approx(1.2)
    assert trajectory.steps[0].mc_return == pytest.approx(0.1 + 0.2 * (0.1 + 0.2 * 1.0))
    assert not trajectory.is_cumulative()


def test_the_math_agent_drops_thoughts_on_request() -> None:
    shown: list[list[str]] = []

    def reply(request: SamplingRequest) -> str:
        shown.append([str(message["content"]) for message in request.messages])
        return f"<think>t{len(shown)}</think>no"

    run([4], reply, agent_class=MathAgent, agent_args={"accumulate_thinking": False}, env_class="rllm/FrozenLake-v0",
        max_steps=3)  # fmt: skip
    assert shown[2][1::2] == ["no", "no"]


# Environments


class LampAgent(MyMathAgent):
    def update_from_env(self, observation, reward, done, info, **kwargs):
        self.messages.append({"role": "user", "content": observation["question"]})
        self._trajectory.steps.append(Step(observation=observation))


def test_an_environment_from_a_dict_is_closed_and_its_final_reward_computed() -> None:
    LampEnv.log.clear()
    replies = lambda request: "stop" if len(request.messages) == 3 else "on"  # noqa: E731
    (done,) = run([{"lamps": 4}], replies, agent_class=LampAgent, env_class=LampEnv, max_steps=5)
    assert done.reward == 0.5
    assert done.info["stop_reason"] == "success"
    (cut,) = run([{"lamps": 4}], "on", agent_class=LampAgent, env_class=LampEnv, max_steps=3)
    assert cut.reward == 0.75
    assert cut.info["stop_reason"] == "max_turns"
    assert LampEnv.log == ["closed", "closed"]


def test_an_environment_error_gives_no_reward_and_does_not_increase_pass_at_k() -> None:
    replies = lambda request: "broken" if "9" in str(request.messages[0]["content"]) else "stop"  # noqa: E731
    results = run([{"lamps": 1}, {"lamps": 9}], replies, agent_class=LampAgent, env_class=LampEnv)
    assert [trajectory.reward for trajectory in results] == [1.0, None]
    assert "the mains went out" in results[1].info["fault"]
    assert results[1].task == {"lamps": 9}
    table = compute_pass_at_k(results)
    assert (table[1].value, table[1].dropped) == (0.5, 1)


def test_an_old_agent_on_a_new_environment_reads_question_and_row() -> None:
    seen: list[Any] = []

    class Reader(FrozenLakeAgent):
        def update_from_env(self, observation, reward, done, info, **kwargs):
            seen.append((dict(observation), observation["question"], done))
            super().update_from_env(observation, reward, done, info)

    (trajectory,) = run(
        [7],
        "I go ```right```",
        agent_class=Reader,
        agent_args={"use_accumulate_history": False},
        env_class="rllm/FrozenLake-v0",
        env_args={"max_turns": 2},
    )
    first, text, _ = seen[0]
    assert "P" in text
    assert first["question"] == text
    assert first["task_id"].endswith("/7")
    assert first["path_length"] >= 1
    # The end of an episode is an empty observation, as rLLM's environments sent, in which the text is still found.
    assert seen[-1][0] == {}
    assert seen[-1][2]
    assert [step.action for step in trajectory.steps] == ["right"] * len(trajectory.steps)
    assert trajectory.task["task_id"] == first["task_id"]


def test_the_users_rows_become_the_tasks_of_an_environment() -> None:
    rows = [{"question": "What is 2+3?", "answer": "5"}, {"question": "What is 4+4?", "answer": "8"}]
    results = run(rows * 2, "\\boxed{5}", agent_class=MathAgent, env_class="rllm/Math-v0", max_steps=1)
    assert [trajectory.reward for trajectory in results] == [1.0, 0.0, 1.0, 0.0]
    assert [trajectory.task for trajectory in results] == rows * 2


# Tools


class Calculator(Tool):
    def __init__(self, name="calculator", description="adds two numbers"):
        super().__init__(name=name, description=description)

    @property
    def json(self):
        parameters = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}
        return {"type": "function", "function": {"name": self.name, "description": self.description,
                                                 "parameters": parameters}}  # fmt: skip

    def forward(self, a, b):
        return ToolOutput(name=self.name, output=a + b)


def exact(task_info: dict, action: str) -> RewardOutput:
    right = task_info["answer"] == action
    return RewardOutput(reward=float(right), metadata={"said": action}, is_correct=right)


def tool_calls_of(*replies: str, parser_name: str = "qwen", **env_args: Any) -> Any:
    tool_map = {"calculator": Calculator}
    sampler = ScriptedSampler(list(replies))
    engine = AgentExecutionEngine(
        agent_class=ToolAgent,
        agent_args={"tool_map": tool_map, "system_prompt": "use tools", "parser_name": parser_name},
        env_class=ToolEnvironment,
        env_args={"tool_map": tool_map, "reward_fn": exact, **env_args},
        rollout_engine=sampler,
    )
    (trajectory,) = asyncio.run(engine.execute_tasks([{"question": "2+3?", "answer": "5"}]))
    return trajectory


CALL = '<tool_call>{"name": "calculator", "arguments": {"a": 2, "b": 3}}</tool_call>'
FINISH = '<tool_call>{"name": "finish", "arguments": {"response": "5"}}</tool_call>'


def test_tools_are_called_and_the_answer_is_graded() -> None:
    trajectory = tool_calls_of(CALL, "5")
    assert trajectory.reward == 1.0
    first, second = trajectory.steps
    assert first.action[0]["function"]["name"] == "calculator"
    tool_message = next(message for message in second.chat_completions if message["role"] == "tool")
    assert tool_message["content"] == "5"
    assert tool_message["tool_call_id"] == first.action[0]["id"]
    assert "adds two numbers" in first.chat_completions[0]["content"]


def test_a_real_finish_call_ends_the_episode_with_its_response() -> None:
    assert tool_calls_of(CALL, FINISH).reward == 1.0


def test_deepseeks_tool_call_format_is_parsed() -> None:
    call = (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>calculator\n"
        '```json\n{"a": 2, "b": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    )
    trajectory = tool_calls_of(call, "5", parser_name="r1")
    assert [message["content"] for message in trajectory.steps[1].chat_completions if message["role"] == "tool"] == [
        "5"
    ]


def test_a_failed_tool_call_is_reported_to_the_model() -> None:
    for call, output in (
        ('{"name": "calculator", "arguments": {"a": 2}}', "Error: TypeError"),
        ('{"name": "calculator", "arguments": {"a": 2, "c": 3}}', "Error: TypeError"),
        ('{"name": "shell", "arguments": {}}', "Error: there is no tool 'shell'"),
    ):
        trajectory = tool_calls_of(f"<tool_call>{call}</tool_call>", "5")
        outputs = [message["content"] for message in trajectory.steps[1].chat_completions if message["role"] == "tool"]
        assert outputs[0].startswith(output), call


def test_malformed_calls_are_ignored() -> None:
    for body in ("{", "[1]", '"x"', '{"name": 3}', '{"name": "f", "arguments": 7}', "[" * 100_000):
        trajectory = tool_calls_of(f"<tool_call>{body}</tool_call>")
        assert trajectory.reward == 0.0, body[:40]
        assert trajectory.steps[0].action[0]["function"]["name"] == "finish", body[:40]


def test_finish_calls_in_every_shape_a_model_writes_end_the_episode() -> None:
    for arguments in ('{"response": "5"}', {"response": "5"}, "5", "{", None, [1]):
        env = ToolEnvironment(task={"answer": "5"}, reward_fn=exact)
        env.reset()
        call = {"id": "1", "function": {"name": "finish", "arguments": arguments}}
        _, reward, done, info = env.step([call])
        assert done
        assert reward == (1.0 if "response" in str(arguments) else 0.0)
        assert info["is_correct"] == bool(reward)


def test_a_function_with_a_signature_is_a_tool() -> None:
    def add(a: int, b: float = 1.0) -> float:
        """Adds."""
        return a + b

    tool = Tool(function=add)
    assert tool.json["function"] == {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "number"}},
            "required": ["a"],
        },
    }
    assert tool(2).to_string() == "3.0"


MORE = '<tool_call>{"name": "python", "arguments": {"code": "%s"}}</tool_call>'


def documented_engine(replies: Any, **changes: Any) -> AgentExecutionEngine:
    """The main listing of rLLM's documents, with a scripted model for the endpoint."""
    arguments: dict[str, Any] = {
        "agent_class": ToolAgent,
        "agent_args": {"tools": ["python"], "parser_name": "qwen"},
        "env_class": ToolEnvironment,
        "env_args": {"tools": ["python"], "reward_fn": math_reward_fn},
        "engine_name": "openai",
        "sampling_params": {"temperature": 0.6, "top_p": 0.95, "model": "Qwen/Qwen3-4B"},
        "max_response_length": 16384,
        "max_prompt_length": 2048,
        "n_parallel_agents": 64,
    }
    return AgentExecutionEngine(rollout_engine=ScriptedSampler(replies), **(arguments | changes))


def test_the_listing_with_the_built_in_python_tool(capsys: pytest.CaptureFixture[str]) -> None:
    """Each task four times; the model runs a program and answers what it printed, for one of the two tasks wrongly."""
    rows = [{"question": f"What is {n} squared?", "ground_truth": str(n * n)} for n in (12, 13)]

    def reply(request: SamplingRequest) -> str:
        texts = [str(message["content"]) for message in request.messages]
        number = re.search(r"What is (\d+)", texts[1])
        assert number is not None
        if len(texts) == 2:
            return MORE % f"print({number[1]} * {number[1]})"
        result = texts[-1].strip() if number[1] == "12" else "170"
        return f"It is \\boxed{{{result}}}."

    results = asyncio.run(documented_engine(reply).execute_tasks(rows * 4))
    compute_pass_at_k(results)
    assert [trajectory.reward for trajectory in results] == [1.0, 0.0] * 4
    assert [step.action[0]["function"]["name"] for step in results[0].steps] == ["python", "finish"]
    printed = capsys.readouterr().out
    assert "Total unique problems: 2\nAverage Pass@1 Accuracy: 0.5000" in printed
    assert "Average Pass@4 Accuracy: 0.5000" in printed


def test_the_python_tool_runs_in_the_sandbox_and_reports_errors_to_the_model() -> None:
    tool = MultiTool(tools=["python"])
    assert tool.json[0]["function"]["parameters"]["required"] == ["code"]
    for code, shown in (
        ("1 + 1", "2"),
        ("print('a')\n1 / 0", "ZeroDivisionError"),
        ("while True: pass", "more than 0.5 s of processor time"),
        ("import socket; socket.create_connection(('1.1.1.1', 80), 1)", "Error"),
        ("print('x' * 10**6)", "characters left out"),
        ("'\udc00'", "UnicodeEncodeError"),
    ):
        output = tool(tool_name="python", code=code, timeout=0.5).to_string()
        assert shown in output, code
        assert len(output) <= 10_000
    for arguments in ({"code": 3}, {"code": "x" * 200_000}, {"program": "1"}, {}):
        assert "Error" in tool(tool_name="python", **arguments).to_string()


def test_a_tool_call_can_be_overridden_and_a_fault_of_a_tool_is_none_of_the_model() -> None:
    class Recording(ToolEnvironment):
        def _execute_tool_calls(self, tool_calls: list[dict[str, Any]]) -> dict[str, str]:
            return {call["id"]: "5, said the override" for call in tool_calls}

        @staticmethod
        def from_dict(env_args: dict[str, Any]) -> ToolEnvironment:
            return Recording(task=env_args, tool_map={"broken": broken}, reward_fn=exact)

    def broken() -> None:
        raise EnvironmentFault("the tool's server is away")

    env = Recording.from_dict({"answer": "5"})
    env.reset()
    call = {"id": "1", "function": {"name": "broken", "arguments": "{}"}}
    assert env.step([call])[0] == {"tool_outputs": {"1": "5, said the override"}}
    with pytest.raises(EnvironmentFault, match="server is away"):
        ToolEnvironment(task={}, tool_map={"broken": broken}, reward_fn=exact).step([call])


def test_a_wrong_argument_is_one_error_and_failed_environments_have_no_accuracy() -> None:
    class Refuses(LampEnv):
        @staticmethod
        def from_dict(env_args: dict) -> Any:
            if env_args.get("fault"):
                raise EnvironmentFault("no lamps are left")
            return LampEnv(**env_args)

    with pytest.raises(TypeError, match="colour"):
        run([{"lamps": 1}] * 5, "stop", agent_class=LampAgent, agent_args={"colour": "red"}, env_class=Refuses)
    with pytest.raises(TypeError, match="bulbs"):
        run([{"bulbs": 1}] * 5, "stop", agent_class=LampAgent, env_class=Refuses)
    refused = [ConnectionError("the server is starting")]

    class Starts(LampEnv):
        @staticmethod
        def from_dict(env_args: dict) -> Any:
            if refused:
                raise refused.pop()
            return LampEnv(**env_args)

    retried = run([{"lamps": 1}] * 3, "stop", agent_class=LampAgent, env_class=Starts)
    assert [trajectory.reward for trajectory in retried] == [1.0] * 3, "a second try of the environment is made"
    failed = run([{"fault": 1}] * 3, "stop", agent_class=LampAgent, env_class=Refuses)
    with pytest.raises(ValueError, match=r"no accuracy: the environment failed in all 3 attempts .*no lamps are left"):
        compute_pass_at_k(failed)


# Unsupported features


def test_unsupported_features_raise_errors_that_name_them() -> None:
    base = {"agent_class": MathAgent, "env_class": LampEnv, "engine_name": "openai"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"config": {"data": {"train_batch_size": 8}}}, "config"),
        ({"overlong_filter": True}, "overlong_filter"),
        ({"engine_name": "verl"}, "verl"),
        ({"env_class": None}, "env_class"),
        ({"rollout_engine": None, "sampling_params": {}}, "model"),
    ]
    assert_all_raise(ValueError, lambda arguments: AgentExecutionEngine(**(base | arguments)), cases)
    with pytest.raises(ValueError, match="repetition_penalty"):
        run([{"lamps": 1}], "stop", **base, sampling_params={"repetition_penalty": 1.1})
    with pytest.raises(ValueError, match=r"'google_search'.*registered tools are \['python'\].*tool_map"):
        ToolAgent(tools=["python", "google_search"])


def test_types_survive_conversion_to_dicts_and_back() -> None:
    step = Step(observation="o", action=Action("up"), reward=0.5, info=None, chat_completions=[{"role": "user"}])  # type: ignore[arg-type]
    trajectory = Trajectory(name="solver", task={"question": "?"}, steps=[step], reward=0.5)
    episode = Episode(id="task-1:3", task={"question": "?"}, is_correct=True, trajectories=[trajectory])
    back = Episode.from_dict(episode.to_dict())
    assert (back.task_id, back.rollout_idx, back.is_correct) == ("task-1", "3", True)
    assert back.trajectories[0].steps[0].action == "up"
    assert back.trajectories[0].reward == 0.5
    assert Trajectory().reward is None
    assert step.info == {}


def test_the_trainer_is_importable_where_torch_is_installed() -> None:
    pytest.importorskip("torch", reason="AgentTrainer needs the extra `train`")
    from rllm_gym import compat

    assert compat.AgentTrainer.__name__ == "AgentTrainer"
    with pytest.raises(ImportError, match="AppWorldEnv"):
        from rllm_gym.compat import AppWorldEnv  # noqa: F401

"""Programs that know only OpenAI's client become agents: their answers are graded, their failures end nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from rllm_gym.core import Episode, Outcome, StopReason
from rllm_gym.engine import AgentWorkflowEngine
from rllm_gym.engine.workflows import AgentProgram
from rllm_gym.engine.workflows.agent_program import ProgramSteps
from rllm_gym.samplers import SamplingRequest, ScriptedSampler
from tests.chat.templates import make_tokenizer
from tests.engine.environments import BreaksOnce, Quiz
from tests.waiting import until

ROWS = [{"prompt": f"Say {n}.", "answer": str(n)} for n in range(64)]

PROGRAM = """
import os, subprocess, sys
from openai import OpenAI

client = OpenAI()
messages = [{"role": "user", "content": sys.stdin.read()}]
draft = client.chat.completions.create(model="any", messages=messages)
messages += [draft.choices[0].message, {"role": "user", "content": "Sure?"}]
text = ""
for event in client.chat.completions.create(model="any", messages=messages, stream=True):
    text += event.choices[0].delta.content or ""
"""


LENGTHS: list[int] = []
"""Of the answers that were graded."""


def right(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    LENGTHS.extend(map(len, completions))
    return [float(text.strip() == wanted) for text, wanted in zip(completions, answer, strict=True)]


def say(request: SamplingRequest) -> str:
    """Repeat the number of the first message."""
    return next(m["content"] for m in request.messages if m["role"] == "user").removeprefix("Say ").removesuffix(".")


def play(program: AgentProgram, tasks: list[int], **options: Any) -> list[Episode]:
    engine = AgentWorkflowEngine(
        program,
        env="rllm/Dataset-v0",
        env_kwargs={"dataset": ROWS, "reward": right},
        sampler=ScriptedSampler(say, make_tokenizer("qwen2.5")),
        **options,
    )
    return engine.run_sync(tasks)


def test_an_unmodified_program_is_graded_by_what_it_prints(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(f"{PROGRAM}print(text)\nprint('noise', file=sys.stderr)\n")
    (episode,) = play(AgentProgram([sys.executable, str(tmp_path / "agent.py")]), [3])
    assert (episode.reward, episode.success, episode.stop_reason) == (1.0, True, StopReason.SUCCESS)
    (trajectory,) = episode.trajectories
    assert [step.reward for step in trajectory.steps] == [0.0, 1.0]
    assert len(trajectory.branches()) == 1, "its second request goes on with the first"
    assert episode.metrics == {"program_failed": 0.0}


async def solve(observation: str, base_url: str, api_key: str) -> str:
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        messages: Any = [{"role": "user", "content": observation}]
        reply = await client.chat.completions.create(model="any", messages=messages)
        return reply.choices[0].message.content or ""


def test_64_programs_at_once_get_their_own_replies() -> None:
    episodes = play(AgentProgram(function=solve), list(range(64)), n_parallel=64)
    assert [episode.reward for episode in episodes] == [1.0] * 64


def test_a_program_gets_its_task_in_its_arguments_and_a_folder_of_its_own(tmp_path: Path) -> None:
    script = f"{PROGRAM}assert os.listdir(sys.argv[2]) == ['observation']\nopen('notes', 'w').write(sys.argv[1])\n"
    script = script.replace("open('notes'", f"open({str(tmp_path / 'notes')!r}") + "print(sys.argv[2])\n"
    (tmp_path / "agent.py").write_text(script)
    command = [sys.executable, str(tmp_path / "agent.py"), "task: {observation} {folder", "{folder}"]
    (episode,) = play(AgentProgram(command), [5])
    assert (tmp_path / "notes").read_text() == "task: Say 5. {folder"
    folder = episode.trajectories[0].steps[-1].info["reward_components"]
    assert folder == {"right": 0.0}


FAILURES = {
    "raises": "raise ValueError('no')",
    "exits": "print(text)\nos._exit(3)",
    "killed": "print(text, flush=True)\nos.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("end", FAILURES.values(), ids=FAILURES)
def test_a_program_that_fails_after_a_reply_has_given_an_empty_answer(
    tmp_path: Path, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What the model wrote may be the reason: the episode counts, and is trained on."""
    (tmp_path / "agent.py").write_text(f"{PROGRAM}{end}\n")
    (episode,) = play(AgentProgram([sys.executable, str(tmp_path / "agent.py")]), [3])
    assert (episode.reward, episode.success, episode.stop_reason) == (0.0, False, StopReason.FAILURE)
    assert episode.trainable
    assert episode.metrics == {"program_failed": 1.0}
    assert "failed: it ended with status" in caplog.text


def test_a_program_that_fails_before_a_reply_or_asks_for_none_is_an_error_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("raise ImportError('no such module')")
    (episode,) = play(AgentProgram([sys.executable, str(tmp_path / "agent.py")]), [3])
    assert episode.stop_reason is StopReason.AGENT_ERROR
    assert "failed before its first reply: it ended with status 1" in str(episode.fault)
    assert "ImportError: no such module" in str(episode.fault)
    (episode,) = play(AgentProgram(["true"]), [3])
    assert "true asked for no reply at its OPENAI_BASE_URL" in str(episode.fault)
    (episode,) = play(AgentProgram(["/no/such/program"]), [3])
    assert "/no/such/program: No such file or directory" in str(episode.fault)


async def waits(observation: str, base_url: str, api_key: str) -> str:
    await solve(observation, base_url, api_key)
    await asyncio.get_running_loop().create_future()
    return "never"


def ends_its_worker(observation: str, base_url: str, api_key: str) -> str:
    """A plain function, which runs in a worker."""
    with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": observation}])
    os._exit(1)


def test_a_program_that_takes_too_long_or_ends_its_worker_has_given_an_empty_answer() -> None:
    """Neither is a fault, which a model could cause at will."""
    for function, options in ((waits, {}), (ends_its_worker, {"workers": "process"})):
        (episode,) = play(AgentProgram(function=function, timeout=5.0 if function is waits else 300.0), [3], **options)
        assert (episode.reward, episode.metrics) == (0.0, {"program_failed": 1.0}), episode.fault
        assert episode.trainable


def test_everything_that_a_program_has_started_ends_with_it(tmp_path: Path) -> None:
    """Also a process that left its group, and holds its output open."""
    child = f"subprocess.Popen(['sleep', '{10**6}'], start_new_session=True)"
    (tmp_path / "agent.py").write_text(f"{PROGRAM}open(sys.argv[1], 'w').write(str({child}.pid))\nprint(text)\n")
    pid = tmp_path / "pid"
    (episode,) = play(AgentProgram([sys.executable, str(tmp_path / "agent.py"), str(pid)]), [3])
    assert episode.reward == 1.0
    assert until(lambda: not psutil.pid_exists(int(pid.read_text())))


def test_a_program_that_writes_without_end_costs_bounded_memory(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(f"{PROGRAM}sys.stdout.write('x' * (8 << 20))\n")
    (episode,) = play(AgentProgram([sys.executable, str(tmp_path / "agent.py")]), [3])
    assert episode.reward == 0.0
    assert LENGTHS[-1] == 1 << 20


def act(url: str, key: str, body: Any) -> tuple[int, Any]:
    """Ask for a step, as a program of any language does."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/step", data, {"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]["message"]


def works(observation: str, base_url: str, api_key: str) -> str:
    """A program that acts in the environment: what it prints is no action."""
    with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": observation}])
    assert act(base_url, "wrong", {"action": "3"})[0] == 401
    for garbage in (b"{", b"[]", {}, {"action": 3}, {"action": None}):
        assert act(base_url, api_key, garbage)[0] == 400, garbage
    assert act(base_url, api_key, {"action": "2"}) == (200, {"observation": "not 2", "done": False})
    if observation.startswith("question 3"):
        assert act(base_url, api_key, {"action": "3"}) == (200, {"observation": "right", "done": True})
        assert act(base_url, api_key, {"action": "3"}) == (400, "the episode has ended: success")
    if observation.startswith("question 5"):
        raise ValueError("no")
    return "4"


def test_a_program_can_act_in_the_environment_and_is_graded_by_what_it_did() -> None:
    engine = AgentWorkflowEngine(AgentProgram(function=works), env=Quiz, sampler=ScriptedSampler(lambda _: "fine"))
    ends = [
        (episode.reward, episode.success, episode.stop_reason, episode.metrics["program_failed"])
        for episode in engine.run_sync([3, 4, 5])
    ]
    assert ends == [
        (1.125, True, StopReason.SUCCESS, 0.0),
        (0.125, False, StopReason.FAILURE, 0.0),  # it printed "4", but did not do it
        (0.125, False, StopReason.FAILURE, 1.0),
    ]


class Slow(Quiz):
    def __init__(self, begun: threading.Event, go_on: threading.Event) -> None:
        super().__init__()
        self._begun, self._go_on = begun, go_on

    def _act(self, action: str) -> Outcome:
        self._begun.set()
        assert self._go_on.wait(60)
        return super()._act(action)


def test_a_step_whose_client_is_gone_ends_before_the_episode_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the environment would be used twice at a time, or end in the middle of an action."""
    begun, go_on, noticed = threading.Event(), threading.Event(), asyncio.Event()
    step = ProgramSteps.step

    async def noticing(steps: ProgramSteps, action: str) -> dict[str, Any]:
        try:
            return await step(steps, action)
        except asyncio.CancelledError:
            noticed.set()
            raise

    async def leaves(observation: str, base_url: str, api_key: str) -> str:
        """Ask for a step, and go away in the middle of it."""
        await solve(observation, base_url, api_key)
        host, port = base_url.removeprefix("http://").removesuffix("/v1").split(":")
        body = json.dumps({"action": "2"})
        head = f"POST /v1/step HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {api_key}\r\n"
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        assert await asyncio.to_thread(begun.wait, 60)
        writer.close()
        await asyncio.wait_for(noticed.wait(), 60)
        go_on.set()
        return "4"

    monkeypatch.setattr(ProgramSteps, "step", noticing)
    engine = AgentWorkflowEngine(
        AgentProgram(function=leaves),
        env=Slow,
        env_kwargs={"begun": begun, "go_on": go_on},
        sampler=ScriptedSampler(lambda _: "fine"),
    )
    (episode,) = engine.run_sync([4])
    assert (episode.fault, episode.reward, episode.stop_reason) == (None, 0.125, StopReason.FAILURE)


def acts(observation: str, base_url: str, api_key: str) -> str:
    with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": observation}])
    return str(act(base_url, api_key, {"action": "a"}))


def test_a_fault_of_a_step_is_no_failure_of_the_program() -> None:
    engine = AgentWorkflowEngine(
        AgentProgram(function=acts), env=BreaksOnce, env_kwargs={"seeds": {}}, sampler=ScriptedSampler(lambda _: "fine")
    )
    (episode,) = engine.run_sync([3])
    assert (episode.reward, episode.metrics) == (1.0, {"program_failed": 0.0})
    assert engine.stats.faults == {"hiccup": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give either command= .* or function="),
        ({"command": "a", "function": solve}, "give either command="),
        ({"function": "no_such_module:solve"}, r"cannot be imported \(No module named"),
        ({"function": "json:loads.x"}, "cannot be imported"),
        ({"command": "a", "timeout": -1}, "timeout=-1"),
    ],
)
def test_wrong_arguments_are_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AgentProgram(**arguments)

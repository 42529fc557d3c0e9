"""Environments controlled by a test through their actions or constructor, and helpers to wait for them."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any, Self, TextIO

import gymnasium
import numpy as np

from rllm_gym.core import AsyncTextEnv, EnvironmentFault, InvalidAction, Outcome, Task, Text, TextEnv

LONG = 120.0
"""Seconds; everything that ends at all ends earlier, even on a busy machine."""


class Gate:
    """A FIFO at which a step with the action ``gate.action`` waits, in any process.

    The ``with`` block is entered when the step waits at the gate; at its end the step continues.
    """

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self.action = f"wait {path}"
        self._end: TextIO | None = None

    def __enter__(self) -> Self:
        self._end = self.path.open("w")  # opens when the step has opened the other end
        return self

    def __exit__(self, *error: object) -> None:
        assert self._end is not None
        self._end.close()


class Counting(gymnasium.Env[str, str]):
    """Counts its steps; the actions ``"sleep 0.1"``, ``"wait FIFO"``, ``"fault"``, ``"bug"``, ``"exit"``, ``"garbage"``
    and ``"done"`` do what they name.

    Its observation contains a random number drawn at reset, so that seeds are distinguishable.
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    def __init__(self, length: int = 5, mark: str = "", render_mode: str | None = None) -> None:
        self.observation_space, self.action_space = Text(1000), Text(1000)
        self.length, self.mark, self.render_mode = length, mark, render_mode
        self.count = 0
        self.draw = 0
        self.closed_file = ""
        self.task: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.draw = 0, int(self.np_random.integers(10**6))
        self.task = (options or {}).get("task")
        return self.show(), {"count": 0, "task": str(self.task)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.count += 1
        word, _, rest = action.partition(" ")
        if word == "sleep":
            time.sleep(float(rest))
        elif word == "wait":
            Path(rest).read_text()
        elif word == "fault":
            raise EnvironmentFault("the environment failed", kind="test")
        elif word == "bug":
            raise RuntimeError("a bug")
        elif word == "exit":
            os._exit(3)
        elif word == "garbage":
            return None  # type: ignore[return-value]
        elif word == "nan":
            return self.show(), float("nan"), False, False, {}
        done = word == "done" or self.count >= self.length
        return self.show(), float(self.count), done, False, {"count": self.count, "echo": action}

    def show(self) -> str:
        return f"{self.mark}{self.draw}/{self.count}"

    def process_id(self) -> int:
        return os.getpid()

    def render(self) -> str:
        return f"<{self.show()}>"

    def close(self) -> None:
        if self.closed_file:
            with open(self.closed_file, "a") as file:
                file.write("closed\n")


class ClosesSlowly(Counting):
    """Takes half a second to close."""

    def close(self) -> None:
        time.sleep(0.5)
        super().close()


class Unresettable(Counting):
    """Its first ``times`` resets fail; they are counted in a file, so that new environments know."""

    def __init__(self, file: str, times: int, only: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.file, self.times, self.only = file, times, only

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        chosen = not self.only or (options or {}).get("task") == self.only
        if chosen:
            with open(self.file, "a") as file:
                file.write("x")
            if os.path.getsize(self.file) <= self.times:
                raise EnvironmentFault("no luck", kind="unlucky")
        return super().reset(seed=seed, options=options)


class Picture(gymnasium.Env[dict[str, Any], str]):
    """Text and an image, as in the web environments."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Dict(
            {"text": Text(100), "image": gymnasium.spaces.Box(0, 255, (2, 3), np.uint8)}
        )
        self.action_space = Text(100)
        self.count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.show(), {}

    def step(self, action: str) -> Any:
        if action == "fault":
            raise EnvironmentFault("the environment failed", kind="test")
        self.count += 1
        return self.show(), 0.0, self.count == 2, False, {}

    def show(self) -> dict[str, Any]:
        return {"text": f"seen {self.count}", "image": np.full((2, 3), self.count, np.uint8)}


class Tasks:
    """Three tasks."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Task:
        return Task(f"task-{index}", f"problem {index}", {"n": index})

    def find(self, task_id: str) -> Task:
        return self[int(task_id.rpartition("-")[2])]


class Echo(TextEnv):
    """Repeats its input."""

    def __init__(self, max_turns: int = 4, **kwargs: Any) -> None:
        super().__init__(tasks=Tasks(), max_turns=max_turns, **kwargs)

    def _begin(self, task: Task) -> str:
        return task.task_id

    def _act(self, action: str) -> Outcome:
        if action == "???":
            raise InvalidAction("what?")
        if action == "fault":
            raise EnvironmentFault("the environment failed", kind="test")
        return Outcome(action, {"said": float(len(action))}, terminated=action == "bye", success=action == "bye")


class AsyncEcho(AsyncTextEnv):
    """:class:`Echo` with coroutines; ``"wait FIFO"`` waits without blocking the loop."""

    def __init__(self, max_turns: int = 4, **kwargs: Any) -> None:
        super().__init__(tasks=Tasks(), max_turns=max_turns, **kwargs)

    async def _async_begin(self, task: Task) -> str:
        await asyncio.sleep(0)
        return task.task_id

    async def _async_act(self, action: str) -> Outcome:
        if action == "???":
            raise InvalidAction("what?")
        if action == "fault":
            raise EnvironmentFault("the environment failed", kind="test")
        if action.startswith("wait "):
            await asyncio.to_thread(Path(action.removeprefix("wait ")).read_text)
        return Outcome(action, {"said": float(len(action))}, terminated=action == "bye", success=action == "bye")

"""``AgentProgram``: an agent that is a program of its own, and asks for replies at an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import shlex
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rllm_gym.argument_checks import check_number
from rllm_gym.chat_server import ChatServer, RequestError
from rllm_gym.core import EnvironmentFault, Episode, StopReason
from rllm_gym.core.importing import import_function
from rllm_gym.engine.call_recorder import CallRecorder
from rllm_gym.engine.handles import EnvironmentHandle
from rllm_gym.engine.workflow import Workflow, WorkflowTask
from rllm_gym.engine.workflow_context import WorkflowContext
from rllm_gym.runtime.fault_log import log_repeated
from rllm_gym.runtime.program_launcher import LaunchSpec, ProgramLauncher, fill_placeholders
from rllm_gym.runtime.supervised_program import ProgramNotStarted, SupervisedProgram
from rllm_gym.samplers.protocol import SamplerError

_log = logging.getLogger(__name__)

_OUTPUT_BYTES = 1 << 20
_ERROR_BYTES = 4_000


class ProgramFailed(Exception):
    """The program ended with an error, or did not end in time."""


class AgentProgram(Workflow):
    """Runs an agent program that was not written for this package, once per episode, and records its chat requests.

    The program gets the environment's first observation on standard input, finds its model through the variables
    ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``, and writes its answer to standard output. The environment grades the
    answer as one action. A program with tools, such as one that works in a repository, acts in the environment itself
    instead: ``POST {OPENAI_BASE_URL}/step`` with ``{"action": text}`` returns ``{"observation": text, "done": bool}``.
    What such a program prints is no action. All replies of the program form one trajectory, which gets the sum of the
    rewards and is trained on token by token; see :mod:`rllm_gym.engine.call_recorder`.

    A program that fails or takes too long after its first reply has given an empty answer: what a model wrote may be
    the reason, and must not undo an episode. Before its first reply it is an error of the agent.

    Roles: ``agent``.

    Args:
        command: The program and its arguments. ``{observation}`` and ``{folder}`` in them are replaced, ``{folder}`` by
            a private folder of the episode, which is removed at its end. The program runs with your rights, in the
            current directory.
        function: Instead of a command, a function ``solve(observation, base_url, api_key)`` that returns the answer, or
            ``"my_module:solve"``. A coroutine function runs in the engine's event loop, another one in a worker.
        timeout: Seconds that it may take.

    Raises:
        ValueError: Both or neither of command and function are given, or there is no such function.
    """

    roles: ClassVar[tuple[str, ...]] = ("agent",)

    def __init__(
        self,
        command: Sequence[str] | str = (),
        *,
        function: Callable[..., Any] | str | None = None,
        timeout: float = 300.0,
    ) -> None:
        self.command = tuple(shlex.split(command) if isinstance(command, str) else map(str, command))
        if bool(self.command) == (function is not None):
            raise ValueError("give either command= (a program and its arguments) or function= (module:function)")
        self.function = import_function(function, "function") if isinstance(function, str) else function
        self.timeout = check_number("timeout", timeout, least=0.0)
        self._failures = 0

    async def run(self, task: WorkflowTask, context: WorkflowContext) -> Episode:
        env = await context.env()
        observation, _ = await env.reset()
        recorder, steps = CallRecorder(context, self.roles[0]), ProgramSteps(env)
        failed = False
        async with ChatServer(recorder.respond, step=steps.step) as server:
            try:
                async with asyncio.timeout(self.timeout):
                    answer = await self._answer(context, str(observation), server)
            except TimeoutError:
                failed = True
                self._failed(ProgramFailed(f"it took longer than timeout={self.timeout:g} s"), recorder)
            except (EnvironmentFault, SamplerError):
                raise
            except Exception as error:
                failed = True
                self._failed(error, recorder)
        if not recorder.num_replies:
            raise RuntimeError(f"{self._name} asked for no reply at its OPENAI_BASE_URL")
        context.metrics["program_failed"] = float(failed)
        await steps.finish("" if failed else answer)
        stop_reason = env.stop_reason
        if not env.done:
            stop_reason = StopReason.FAILURE if steps.has_acted else StopReason.MAX_TURNS
        if failed and recorder.cut is not None and not env.success:
            stop_reason = recorder.cut
        return recorder.episode(reward=env.reward, success=env.success, stop_reason=stop_reason, info=env.info)

    @property
    def _name(self) -> str:
        return self.command[0] if self.command else getattr(self.function, "__name__", repr(self.function))

    def _failed(self, error: Exception, recorder: CallRecorder) -> None:
        """Log how the program failed.

        Raises:
            RuntimeError: It failed before its first reply.
        """
        words = str(error) if isinstance(error, ProgramFailed) else f"{type(error).__name__}: {error}"
        if not recorder.num_replies and recorder.cut is None:
            raise RuntimeError(f"{self._name} failed before its first reply: {words}") from error
        self._failures += 1
        log_repeated(_log, self._failures, f"{self._name} failed: {words}", "failures")

    async def _answer(self, context: WorkflowContext, observation: str, server: ChatServer) -> str:
        if self.function is None:
            return await self._output(observation, server)
        arguments = (observation, server.url, server.key)
        if inspect.iscoroutinefunction(self.function):
            return str(await self.function(*arguments))
        try:
            return str(await context.call(self.function, *arguments, timeout=self.timeout))
        except (
            EnvironmentFault
        ) as fault:  # it hung, ended its worker or used up its memory, as the model may have wanted
            raise ProgramFailed(str(fault)) from fault

    async def _output(self, observation: str, server: ChatServer) -> str:
        """Run the command and return its output.

        Raises:
            ProgramFailed: It could not be started, or did not end with status 0.
        """
        folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="rllm-gym-program-")
        launcher = ProgramLauncher(folder)
        try:
            await asyncio.to_thread(Path(folder, "observation").write_text, observation, "utf-8")
            values = {"observation": observation, "folder": folder}
            argv = tuple(fill_placeholders(word, values) for word in self.command)
            own = {"OPENAI_BASE_URL": server.url, "OPENAI_API_BASE": server.url, "OPENAI_API_KEY": server.key}
            spec = LaunchSpec(argv, {**os.environ, **own}, os.getcwd())
            return await _run(launcher, spec, Path(folder, "observation"))
        finally:
            await asyncio.to_thread(launcher.close)


class ProgramSteps:
    """The environment of an episode, for a program that acts in it: one step after the other.

    Attributes:
        has_acted: Whether the program has made a step.
    """

    def __init__(self, env: EnvironmentHandle) -> None:
        self._env = env
        self._turn = asyncio.Lock()
        self.has_acted = False

    async def step(self, action: str) -> dict[str, Any]:
        """Return what the program gets for an action. A step that has begun ends, also if its client is gone.

        Raises:
            RequestError: The environment's episode has ended, or it has failed, which ends the attempt.
        """
        return await asyncio.shield(asyncio.ensure_future(self._step(action)))

    async def _step(self, action: str) -> dict[str, Any]:
        async with self._turn:
            if self._env.done:
                raise RequestError(f"the episode has ended: {self._env.stop_reason.value}", code="episode_ended")
            self.has_acted = True
            observation, *_ = await self._env.step(action)
            return {"observation": str(observation), "done": self._env.done}

    async def finish(self, answer: str) -> None:
        """Grade the answer of a program that has not acted itself. Steps that were asked for end first."""
        async with self._turn:
            if not self.has_acted:
                await self._env.step(answer)


async def _run(launcher: ProgramLauncher, spec: LaunchSpec, stdin: Path) -> str:
    """Run a program to its end; it is killed with all its descendants if this is cancelled.

    Raises:
        ProgramFailed: It could not be started, or did not end with status 0.
    """
    program = SupervisedProgram(launcher, spec, output_bytes=_OUTPUT_BYTES, error_bytes=_ERROR_BYTES)
    try:
        with stdin.open("rb") as given:
            await program.start(given.fileno())
        end = await program.wait()
    except ProgramNotStarted as error:
        raise ProgramFailed(str(error)) from error
    finally:
        await asyncio.shield(program.close())
    if end.status != 0:
        raise ProgramFailed(f"it ended with status {end.status}; its stderr ends with:\n{end.errors.strip()}")
    return end.output

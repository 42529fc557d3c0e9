"""``rllm-gym play``: play an environment in the terminal, by hand or with a script on standard input."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import gymnasium
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from rllm_gym.commands.env_arguments import add_environment_arguments, creation_errors, parse_kwargs, parse_task
from rllm_gym.commands.errors import CommandError
from rllm_gym.commands.terminal import visible
from rllm_gym.core import EnvironmentFault
from rllm_gym.engine.env_creation import is_environment, is_game

_HELP = """Each reply is passed to env.step() like the reply of a model.
  One line is one reply. A backslash at the end continues the reply on the next line.
  A ``` block is read to its closing ``` and sent as one reply.
  /new   start a new episode        /state  show the info of the last step
  /help  show this text             /quit   quit (also Ctrl-D and Ctrl-C)"""

_EXAMPLES = """examples:
  rllm-gym play rllm/FrozenLake-v0
  rllm-gym play rllm/FrozenLake-v0 --kwarg size=6 --seed 3
  rllm-gym play rllm/Math-v0 --task 7
  rllm-gym play rllm/TicTacToe-v0 --kwarg opponent=oracle --kwarg player=player_0
  printf 'down\\nright\\n' | rllm-gym play rllm/FrozenLake-v0 --seed 0
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="rllm-gym play",
        description="Play an environment in the terminal: read the observation, type a reply, see the reward.\n"
        + _HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_environment_arguments(parser)
    parser.add_argument("--seed", type=int, default=None, help="seed of the first episode (default: random)")
    parser.add_argument("--task", default=None, help="index or id of the task (default: chosen by the seed)")
    parser.add_argument(
        "--episodes",
        type=int,
        default=None,
        help="quit after this number of episodes (default: 1 if stdin is not a terminal, else no limit)",
    )
    options = parser.parse_args(argv)
    kwargs = parse_kwargs(options.kwarg)
    with creation_errors(options.env):
        if is_game(options.env) and not is_environment(options.env):
            raise CommandError(f"{options.env} is a game of several agents; use `rllm-gym eval` with a workflow")
        env = gymnasium.make(options.env, **kwargs)
    try:
        return InteractiveSession(
            env, seed=options.seed, task=parse_task(options.task), episodes=options.episodes
        ).run()
    finally:
        env.close()


class InteractiveSession:
    """Episodes played one after the other until the user quits.

    Args:
        env: The environment; the caller closes it.
        seed: Seed of the first episode; later ones continue its random stream.
        task: Index or id of the task of every episode, or ``None``.
        episodes: Number of episodes; ``None`` is one for scripted input and no limit for interactive input.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], *, seed: int | None, task: int | str | None, episodes: int | None = None
    ) -> None:
        self._env = env
        self._seed = seed
        self._options = None if task is None else {"task": task}
        self._console = Console(highlight=False)
        self._interactive = sys.stdin.isatty()
        self._episodes = episodes if episodes is not None or self._interactive else 1
        self._info: dict[str, Any] = {}
        self._total = 0.0
        self._turn = 0
        self._solved = 0
        self._finished = 0

    def run(self) -> int:
        """Play until the input ends; return the exit status 0."""
        if self._interactive:
            self._console.print(Text(_HELP, style="bright_black"))
        try:
            self._begin()
            while (reply := self._read()) is not None:
                command = reply.strip()
                if command == "/quit":
                    break
                if command == "/help":
                    self._console.print(Text(_HELP, style="bright_black"))
                elif command == "/state":
                    self._console.print(Text(visible(repr(self._info)), style="bright_black"))
                elif command == "/new":
                    self._begin()
                elif self._step(reply):
                    if self._finished == self._episodes:
                        break
                    self._begin()
        except (EOFError, KeyboardInterrupt):
            self._console.print()
        if self._finished:
            self._console.print(Text(f"{self._solved} of {self._finished} episodes solved", style="bright_black"))
        return 0

    def _begin(self) -> None:
        observation, self._info = self._env.reset(seed=self._seed, options=self._options)
        self._seed = None
        self._total, self._turn = 0.0, 0
        self._show(observation, f"task {self._info['task_id']}")
        if self._info.get("tools", "[]") != "[]":
            self._console.print(Text(f"tools: {visible(self._info['tools'])}", style="bright_black"))

    def _step(self, reply: str) -> bool:
        """Send one reply; return whether the episode is over."""
        try:
            observation, reward, terminated, truncated, self._info = self._env.step(reply)
        except EnvironmentFault as fault:
            self._console.print(Text(f"environment fault ({fault.kind}): {visible(str(fault))}", style="red"))
            self._finished += 1
            return True
        self._turn += 1
        self._total += float(reward)
        parts = ", ".join(f"{name} {value:+g}" for name, value in self._info["reward_components"].items() if value)
        self._show(observation, f"turn {self._turn} · reward {reward:+g}" + (f" ({parts})" if parts else ""))
        if not (terminated or truncated):
            return False
        self._finished += 1
        self._solved += bool(self._info["success"])
        style = "bold green" if self._info["success"] else "bold red"
        verdict = "solved" if self._info["success"] else self._info["stop_reason"].replace("_", " ")
        self._console.print(Text(f"{verdict} · total reward {self._total:+g} · {self._turn} turns", style=style))
        return True

    def _show(self, observation: Any, title: str) -> None:
        # An observation of text and image is a dict; the terminal shows only the text.
        text = observation["text"] if isinstance(observation, dict) else observation
        title_text = Text(visible(title), style="cyan")
        style = "yellow" if self._info.get("invalid_action") else "bright_black"
        self._console.print(Panel(Text(visible(text)), title=title_text, title_align="left", border_style=style))

    def _read(self) -> str | None:
        """Return one reply; ``None`` at the end of the input."""
        lines: list[str] = []
        fenced = False
        while True:
            if self._interactive:
                self._console.print("… " if lines else "> ", end="", style="bold")
            line = sys.stdin.readline()
            if not line:
                return "\n".join(lines) if lines else None
            line = line.rstrip("\r\n")
            if line.count("```") % 2:
                fenced = not fenced
            if not fenced and line.endswith("\\"):
                lines.append(line[:-1])
                continue
            lines.append(line)
            if not fenced:
                return "\n".join(lines)

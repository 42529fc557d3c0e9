"""Pages of the environments: for each family the manuals of its ids, and an episode that is run when the site is built.

The manuals are the class docstrings; what is shown of an episode is what the environment and a reference solution said.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import pettingzoo

import rllm_gym
from rllm_gym.commands.env_docs import EnvDocs, as_markdown, env_docs
from rllm_gym.core import RllmGymError
from rllm_gym.envs import DATASET_ID, MINIWOB, OWN_TASKS, TABLE
from rllm_gym.multiagent import GAMES

MAX_TURNS = 8
MAX_CHARS = 2_500
QUICK = "QUICK_SITE" in os.environ
"""Whether to leave out what takes long, see hooks.py."""

Turns = Iterator[tuple[str, str]]
"""Who speaks, and what."""

# Families whose episodes start a browser, a server or a sandbox.
_SLOW = ("Code", "ToolMath", "SWE", "Web", "MCP")
# A reply of the model that no environment has a reference solution for.
_SWE_REPLIES = ("```bash\ngit log --oneline; ls; head -30 README*\n```", "```bash\nsubmit\n```")
_CAPITALS = {
    "dataset": [{"prompt": "What is the capital of France?", "answer": "Paris"}],
    "reward": lambda completions, answer, **_: [float(right in text) for text, right in zip(completions, answer)],
    "split": None,
}


@dataclass(frozen=True)
class EnvPage:
    """A page of one family.

    Attributes:
        title: Its name in the navigation.
        uri: Its file in the site.
        ids: The environments on it.
    """

    title: str
    uri: str
    ids: tuple[str, ...]

    def markdown(self) -> str:
        lines = [f"# {self.title}", ""]
        shown: dict[str, str] = {}
        for env_id in self.ids:
            entry = _game_docs(env_id) if env_id in GAMES else env_docs(env_id)
            lines += [f"## {env_id}", "", *_manual(entry, shown), "", *_example(env_id), ""]
        if MINIWOB and self.ids[0] == "rllm/Web-v0":
            entry = env_docs(next(iter(MINIWOB)))
            names = ", ".join(f"`{env_id}`" for env_id in MINIWOB)
            lines += ["## MiniWoB++", "", as_markdown(_demoted(entry.text)), "", "### Ids", "", names, ""]
        return "\n".join(lines)


def _pages() -> list[EnvPage]:
    families: dict[str, list[str]] = {}
    for env_id, (entry_point, _) in (TABLE | OWN_TASKS).items():
        families.setdefault(entry_point.partition(":")[0], []).append(env_id)
    ids = [*families.values(), *([game] for game in GAMES)]
    titles = [env_ids[0].removeprefix("rllm/").removesuffix("-v0") for env_ids in ids]
    return [EnvPage(title, f"environments/{title}.md", tuple(found)) for title, found in zip(titles, ids, strict=True)]


PAGES = _pages()


def anchors() -> dict[str, str]:
    """Return the page of each id, by the anchor of its heading."""
    return {re.sub(r"[^\w-]", "", env_id.lower()): page.uri for page in PAGES for env_id in page.ids}


def overview() -> str:
    """Return the page with a table of all environments."""
    lines = [
        "# Environments",
        "",
        "Each page has the manual of a family, with its arguments, and an example episode. `rllm-gym list ID` prints "
        "the same manual. Games are [PettingZoo environments](multiagent.md).",
        "",
        "| id | task |",
        "|---|---|",
    ]
    for page in PAGES:
        for env_id in page.ids:
            entry = _game_docs(env_id) if env_id in GAMES else env_docs(env_id)
            anchor = re.sub(r"[^\w-]", "", env_id.lower())
            lines.append(f"| [`{env_id}`]({page.uri}#{anchor}) | {entry.summary} |")
    if MINIWOB:
        lines.append(
            f"| {len(MINIWOB)} ids `rllm/MiniWoB-…-v0` | [MiniWoB++](environments/Web.md#miniwob) in a browser |"
        )
    return "\n".join(lines) + "\n"


def _game_docs(game_id: str) -> EnvDocs:
    module, _, name = GAMES[game_id].partition(":")
    text = inspect.getdoc(getattr(importlib.import_module(module), name)) or ""
    summary = " ".join(text.split("\n\n", 1)[0].split())
    return EnvDocs(game_id, GAMES[game_id], {}, summary, text)


def _manual(entry: EnvDocs, shown: dict[str, str]) -> list[str]:
    make = f'pettingzoo.make("aec", "{entry.env_id}")' if entry.env_id in GAMES else f'gym.make("{entry.env_id}")'
    first = shown.setdefault(entry.entry_point, entry.env_id)
    if first != entry.env_id:
        fixed = ", ".join(f"{name}={value!r}" for name, value in entry.kwargs.items())
        return [f"`{make}` is `{first}` with `{fixed}`."]
    return [f"`{make}` · class `{entry.entry_point}`", "", as_markdown(_demoted(entry.text), entry.arguments)]


def _demoted(text: str) -> str:
    return re.sub(r"^##(?= )", "###", text, flags=re.MULTILINE)


def _example(env_id: str) -> list[str]:
    if QUICK and env_id.startswith(tuple(f"rllm/{family}" for family in _SLOW)):
        return []
    try:
        turns = list(_game(env_id) if env_id in GAMES else _episode(env_id))
    except (ImportError, RllmGymError) as error:  # a browser, a sandbox or a package is missing on this machine
        return ["### Example episode", "", f"Not shown: it could not be run here ({str(error)[:300]})."]
    lines = ["### Example episode", "", '<div class="transcript" markdown>', ""]
    for speaker, text in turns:
        if not text:
            lines += [f"*{speaker}*", ""]
            continue
        fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
        shown = text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}\n… {len(text) - MAX_CHARS:,} more characters"
        lines += [f"**{speaker}**", "", f"{fence}text", shown.rstrip("\n"), fence, ""]
    return [*lines, "</div>"]


def _episode(env_id: str) -> Turns:
    with gymnasium.make(env_id, **(_CAPITALS if env_id == DATASET_ID else {})) as env:
        base: Any = env.unwrapped
        observation, _ = env.reset(seed=0)
        yield "Environment", observation
        reply_of = _solution(env_id)
        for turn in range(MAX_TURNS):
            reply = reply_of(base, turn)
            yield "Model", reply
            observation, reward, terminated, truncated, info = env.step(reply)
            yield "Environment", observation
            if terminated or truncated:
                yield f"Reward {reward:g}, success {info['success']}, stop reason {info['stop_reason']}.", ""
                return
        yield f"… and so on, up to {base.max_turns} turns.", ""


def _solution(env_id: str) -> Callable[[Any, int], str]:
    """Return the reference solution of an environment as a function of the environment and the turn."""
    if env_id == DATASET_ID:
        return lambda env, turn: "It is Paris."
    if "FrozenLake" in env_id:
        return lambda env, turn: f"I go ```{env.oracle().action}```"
    if "SWE" in env_id:
        return lambda env, turn: _SWE_REPLIES[turn]
    if "Code" in env_id:
        from rllm_gym.envs.code import reference_solution

        return lambda env, turn: f"```python\n{reference_solution(env.task)}\n```"
    if "ToolMath" in env_id:
        call = '<tool_call>{"name": "python", "arguments": {"code": "print(sum(range(10)))"}}</tool_call>'
        return lambda env, turn: f"\\boxed{{{env.task.data['gold']}}}" if turn else call
    if "Math" in env_id:
        return lambda env, turn: f"The answer is \\boxed{{{env.task.data['gold']}}}"
    family = env_id.removeprefix("rllm/").removesuffix("-v0").lower()
    demonstrations = importlib.import_module(f"rllm_gym.envs.{family}.demonstrations")
    next_reply = getattr(demonstrations, "next_reply", None) or demonstrations.oracle
    return lambda env, turn: next_reply(env)


def _game(game_id: str) -> Turns:
    game = pettingzoo.make("aec", game_id)
    game.reset(seed=0)
    for turn, agent in enumerate(game.agent_iter()):
        observation, reward, terminated, truncated, _ = game.last()
        yield f"Environment to {agent}", observation["text"]
        if terminated or truncated:
            yield f"Reward of {agent}: {reward:g}.", ""
            game.step(None)
            continue
        if turn == 2 * MAX_TURNS:
            yield "… and so on.", ""
            return
        # The oracle of Connect Four searches the whole game tree, for seconds.
        reply = f"I drop ```{1 + turn % 2}```" if "ConnectFour" in game_id else game.unwrapped.oracle()
        yield agent, reply
        game.step(reply)


assert rllm_gym.__version__  # the import registers the ids

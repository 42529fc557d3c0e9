"""``rllm-gym view`` in this process, and runs for it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import queue
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from rllm_gym.commands.view.episode_index import EpisodeIndex
from rllm_gym.commands.view.run_files import open_runs
from rllm_gym.commands.view.token_text import TokenTexts
from rllm_gym.core import Episode, Step, StopReason, Trajectory, TurnTokens

pytest.importorskip("aiohttp", reason="rllm-gym view needs aiohttp: pip install 'rllm-gym[view]'")

from rllm_gym.commands.view.server import ViewServer, serve


class Viewer:
    """A served viewer; ``url`` is its address."""

    def __init__(self, url: str) -> None:
        self.url = url

    def request(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()

    def ask(self, name: str, *parameters: tuple[str, Any]) -> Any:
        status, _, body = self.request(f"/api/{name}?{urlencode(parameters)}")
        assert status == 200, body
        return json.loads(body)

    def indexed(self) -> Any:
        """Return the state when everything that the files have is indexed."""
        while (state := self.ask("state"))["indexing"]:
            pass
        return state


@contextlib.contextmanager
def viewing(folder: Path, runs: Sequence[Path], tokenizer: Path | None = None) -> Iterator[Viewer]:
    """Serve runs until the end of the block; the index is in ``folder``."""
    addresses: queue.Queue[str] = queue.Queue()
    loop = asyncio.new_event_loop()
    found = open_runs(runs)
    with EpisodeIndex(folder / "index.sqlite", found) as index:
        server = ViewServer(found, index, TokenTexts(tokenizer))
        task = loop.create_task(serve(server, 0, addresses.put))

        def run() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(task)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield Viewer(addresses.get(timeout=60).rstrip("/"))
        finally:
            loop.call_soon_threadsafe(task.cancel)
            thread.join()
            loop.close()


def episode(
    number: int, *, task: str = "", reply: str = "a reply", observation: Any = "a question", **fields: Any
) -> Episode:
    """Return an episode of one turn of two sampled tokens; its task is one of five."""
    task = task or f"task/{number % 5}"
    tokens = TurnTokens((1, 5), (6, 2), (-0.5, -2.0), weight_version=3, advantages=fields.pop("advantages", ()))
    text = observation["text"] if isinstance(observation, dict) else observation
    message = [{"role": "user", "content": text}]
    step = Step(observation, message, reply, reward=number / 10, done=True, tokens=tokens)
    defaults: dict[str, Any] = {"reward": number / 10, "success": number % 2 == 0, "stop_reason": StopReason.FAILURE}
    defaults |= {"group_id": f"{task}@1", "trajectories": [Trajectory("agent", steps=[step])]}
    return Episode(f"{task}#{number}", task, **(defaults | fields))

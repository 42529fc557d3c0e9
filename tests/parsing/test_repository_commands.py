"""Replies as commands and calls: common notations are parsed, and errors are exact."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from parsing.checks import assert_all_equal, assert_all_refused, assert_linear_time

from rllm_gym.core import InvalidAction
from rllm_gym.parsing.commands import ShellCommand, parse_command
from rllm_gym.parsing.function_calls import FunctionCall

LS = FunctionCall("bash", {"command": "ls"})


def test_one_command_in_a_fence_is_found():
    replies = [
        "```bash\nls\n```",
        "I look first.\n\n```bash\nls\n```\n",
        "```sh\nls\n```",
        "````bash\nls\n````",
        "~~~bash\nls\n~~~",
        "```\nls\n```",
        "```mswea_bash_command\nls\n```",
        "```bash\nls\n```<|im_end|>",
        "```bash\r\nls\r\n```",
        "<think>maybe\n```bash\nrm -rf /\n```\n</think>\n```bash\nls\n```",
        "maybe\n```bash\nrm -rf /\n```\n</think>\n\n```bash\nls\n```",
        "maybe\n```bash\nrm -rf /\n```</think>```bash\nls\n```",
        "The bug is here:\n```python\nx = 1\n```\nLet me look.\n```bash\nls\n```",
        "- first\n  ```bash\nls\n  ```",
    ]
    assert_all_equal(parse_command, [(reply, ShellCommand("ls")) for reply in replies])


def test_a_function_call_is_found_in_every_form():
    replies = [
        "<function=bash><parameter=command>ls</parameter></function>",
        "<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>",
        "Thought.\n<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>",
        "<function=bash>\n<parameter=command>ls</parameter>\n</function",  # a server that stops at "</function"
        "<function=bash>\n<parameter=command>ls</parameter>\n",
        '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>',
        '<tool_call>{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}</tool_call><|im_end|>',
        '<think>hm</think><tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>',
        '{"name": "bash", "arguments": {"command": "ls"}}',
        '{"name": "bash", "parameters": {"command": "ls"}}',
        'I look.\n{"name": "bash", "arguments": {"command": "ls"}}',
        '```json\n{"name": "bash", "arguments": {"command": "ls"}}\n```',
        '{"type": "function", "function": {"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}}',
        '[{"id": "1", "type": "function", "function": {"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}}]',
        '{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "bash", "arguments": '
        '"{\\"command\\": \\"ls\\"}"}}]}',
    ]
    assert_all_equal(parse_command, [(reply, LS) for reply in replies])


def test_submitting_in_plain_text():
    assert parse_command("submit") == parse_command("`submit`\n") == ShellCommand("submit")


def test_markup_within_a_command_is_text():
    text = "cat > README.md <<'EOF'\n```bash\nls\n```\n<tool_call>{}</tool_call> <think>\nEOF"
    assert parse_command(f"````bash\n{text}\n````") == ShellCommand(text)
    call = json.dumps({"name": "bash", "arguments": {"command": text}})
    assert parse_command(f"<tool_call>{call}</tool_call>") == FunctionCall("bash", {"command": text})
    page = "<parameter=x>a</parameter> inside </function> and\n</parameter>, still inside\n```"
    written = f"<function=edit><parameter=path>a</parameter><parameter=text>\n{page}\n</parameter></function>"
    assert parse_command(written) == FunctionCall("edit", {"path": "a", "text": page})


def test_thinking_tags_within_a_command_are_text():
    assert parse_command("```bash\ngrep -rn '</think>' .\n```") == ShellCommand("grep -rn '</think>' .")
    assert parse_command("<think>a</think>```python\nno\n```\n```bash\ngrep '<think>' a </think>\n```") == ShellCommand(
        "grep '<think>' a </think>"
    )


def test_errors_are_reported():
    cases = [
        ("", "no action"),
        ("I am done.", "no action"),
        ("```bash\nls\n```\nand\n```bash\npwd\n```", "2 actions, at positions 1, 20"),
        ("```bash\nls\n```\n<function=submit></function>", "2 actions"),
        ("```bash\nls", "never closed"),
        ("```bash\n\n```", "is empty"),
        ("```python\nprint(1)\n```", "label the one to run 'bash'"),
        ("<think>\n```bash\nls\n```", "ends inside <think>"),
        ("```bash\nls\n```\n</think>", "no action"),
        # An incomplete command is never run: its fence was closed by one within the command's own text.
        ("```bash\ncat > a.md <<'EOF'\n```python\nx\n```\nEOF\n```", "never closed"),
        ("```bash\ncat > a.md <<'EOF'\n```\nx\n```\nEOF\n```", "another block"),
        ("<function=bash><parameter=command>rm -rf /tmp/x", "never closed with </parameter>"),
        ("<function=bash>ls</function>", "'ls</function>' at position 16"),
        ("<function=bash><parameter=a>1</parameter><parameter=a>2</parameter></function>", "'a' twice"),
        ('<tool_call>{"name": "bash", "arguments": {"command": "ls"}', "not JSON"),
        ("<tool_call>ls</tool_call>", "neither a JSON object"),
        ('<tool_call>{"name": "bash"} {"name": "bash"}</tool_call>', "goes on"),
        ('{"name": "bash", "arguments": {"command": ls}}', "position 43"),
        ('{"name": "bash", "arguments": {"command": "a", "command": "b"}}', "'command' twice"),
        ('{"name": "bash", "arguments": [1]}', "no JSON object"),
        ('{"tool_calls": []}', "a list of 0"),
        ('{"name": 3}', "no text under 'name'"),
        ('{"name": ' + "[" * 100_000, "nested too deeply"),
        ('{"name": ' + "9" * 100_000 + "}", "too long"),
    ]
    assert_all_refused(parse_command, cases)


PIECES = [
    *("```", "````", "```bash", "~~~", "\n", " ", "ls", "submit", "<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<function=bash>", "<function=", "</function>", "<parameter=command>", "</parameter>", '{"name": "bash"', "}"),
    *('"arguments": {"command": "ls"}', ", ", "[", "]", '"', "\\", "\x00", "\ud800", "é", "<|im_end|>", "\r\n"),
]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=40).map("".join))
def test_any_reply_is_an_action_or_an_invalid_one(reply):
    try:
        found = parse_command(reply)
    except InvalidAction as error:
        str(error).encode()  # it is sent to the model
    else:
        assert isinstance(found, ShellCommand | FunctionCall)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200))
def test_every_command_survives_json_and_a_long_enough_fence(text):
    call = json.dumps({"name": "bash", "arguments": {"command": text}})
    assert parse_command(f"<tool_call>{call}</tool_call>") == FunctionCall("bash", {"command": text})
    text = text.replace("\r", "")
    if text.strip() and "</think>" not in text:
        fence = "`" * 300
        assert parse_command(f"{fence}bash\n{text}\n{fence}") == ShellCommand(text)


def test_time_is_linear_in_the_length_of_a_reply():
    pieces = [*PIECES, "```\n", "```bash\n", "<think></think>", "<function=a><parameter=b>", "{\n"]
    assert_linear_time(parse_command, [("```bash\nls\n", piece, "") for piece in pieces])

"""Any reply is an action of the repository environment or an invalid action with an error message."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from rllm_gym.core import InvalidAction
from rllm_gym.envs.swe.actions import TOOLS, Bash, Create, Insert, Replace, Submit, Undo, View, parse_action
from rllm_gym.envs.swe.text_display import cut, printable, terminal_text

KINDS = Bash | Create | Insert | Replace | Submit | Undo | View
NAMES = st.sampled_from(["bash", "str_replace_editor", "submit", "edit", "finish", "execute_bash"]) | st.text(
    max_size=5
)
KEYS = st.sampled_from(["command", "path", "timeout", "old_str", "new_str", "file_text", "insert_line", "view_range"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(
        ["view", "create", "str_replace", "insert", "undo_edit", "a.py", "[1, 2]", "3", "1e9", "\ud800", "\0"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


@given(NAMES, st.dictionaries(KEYS | st.text(max_size=4), VALUES, max_size=5), st.booleans())
def test_every_call_is_parsed_or_refused(name, arguments, xml):
    if xml:
        inside = "".join(f"<parameter={key}>{value}</parameter>" for key, value in arguments.items())
        reply = f"<function={name}>{inside}</function>"
    else:
        reply = f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
    try:
        assert isinstance(parse_action(reply), KINDS)
    except InvalidAction as error:
        str(error).encode()


def test_names_of_other_harnesses_and_unused_arguments_are_accepted():
    assert parse_action('{"name": "execute_bash", "arguments": {"command": "ls", "timeout": null}}') == Bash("ls")
    assert parse_action('{"name": "finish", "arguments": {"message": "done"}}') == Submit()
    view = {"command": "view", "path": " a.py ", "view_range": None, "old_str": None}
    assert parse_action(json.dumps({"name": "edit", "arguments": view})) == View("a.py")
    assert parse_action("```bash\n submit \n```") == Submit()
    assert parse_action("```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```") == Submit()
    assert parse_action('```bash\necho "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" && cat patch.txt\n```') == Submit()
    assert parse_action("```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\ngit diff\n```") == Submit()
    assert isinstance(parse_action("```bash\necho submit\n```"), Bash)
    assert isinstance(parse_action("```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUTS\n```"), Bash)


def test_the_schemas_are_openai_tools():
    for tool in json.loads(TOOLS):
        assert tool["type"] == "function"
        assert set(tool["function"]) == {"name", "description", "parameters"}
        assert set(tool["function"]["parameters"]["required"]) <= set(tool["function"]["parameters"]["properties"])


@given(
    st.binary(max_size=300)
    | st.lists(st.sampled_from([b"\x1b[", b"31m", b"\x1b]0;", b"\x07", b"\r", b"\n", b"\xc3"])).map(b"".join)
)
def test_any_output_can_be_shown(data):
    shown = terminal_text(data)
    shown.encode()
    assert all(letter.isprintable() or letter in "\n\t" or ord(letter) > 0x9F for letter in shown)


@given(st.text(max_size=500), st.integers(2, 100))
def test_truncated_output_is_marked(text, limit):
    shown = cut(text, limit)
    if len(text) <= limit:
        assert shown == text
    else:
        assert shown.startswith(text[: limit // 2])
        assert f"{len(text) - 2 * (limit // 2)} characters" in shown
    printable(shown).encode()

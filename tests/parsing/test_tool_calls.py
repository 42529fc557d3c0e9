"""Tool calls in every notation: valid calls are parsed, other text stays text, and errors are explained."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from parsing.checks import assert_all_equal, assert_all_refused, assert_linear_time

from rllm_gym.core import InvalidAction
from rllm_gym.parsing.function_calls import FunctionCall
from rllm_gym.parsing.tool_calls import ParsedReply, parse_tool_calls

READ = FunctionCall("read", {"path": "a.txt"})
LIST = FunctionCall("list", {})
R, L = '{"name": "read", "arguments": {"path": "a.txt"}}', '{"name": "list", "arguments": {}}'


def test_two_calls_are_found_in_every_notation():
    replies = [
        f"<tool_call>{R}</tool_call><tool_call>{L}</tool_call>",
        f"<tool_call>\n{R}\n</tool_call>\n<tool_call>\n{L}\n</tool_call><|im_end|>",
        f"<tool_call>{R}</tool_call>\n<tool_call>{L}",  # engines that stop at the closing tag omit it
        f"<tool_call>[{R}, {L}]</tool_call>",
        f"<think>or <tool_call>nonsense?</think><tool_call>{R}</tool_call><tool_call>{L}</tool_call>",
        f"or <tool_call>nonsense?</think><tool_call>{R}</tool_call><tool_call>{L}</tool_call>",
        f"<tool_call>{R}</tool_call><think>and now?</think><tool_call>{L}</tool_call>",
        "<tool_call>\n<function=read>\n<parameter=path>\na.txt\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=list>\n</function>\n</tool_call>",
        "<function=read><parameter=path>a.txt</parameter></function><function=list></function>",
        '<function=read>{"path": "a.txt"}</function><function=list>{}</function>',
        '<|python_tag|>{"name": "read", "parameters": {"path": "a.txt"}}; {"name": "list", "parameters": {}}<|eom_id|>',
        '{"name": "read", "parameters": {"path": "a.txt"}}; {"name": "list", "parameters": {}}<|eot_id|>',
        '<|python_tag|>read.call(path="a.txt"); list.call()<|eom_id|>',
        "<|python_tag|>read(path='a.txt')\nlist()<|eom_id|>",
        '<|python_tag|>read.call(path="a.txt")<|python_tag|>list.call()',
        'read.call(path="a.txt"); list.call()<|eom_id|>',  # the tag is a special token, which samplers omit
        '<think>search.call(query="or so")?</think>read.call(path="a.txt")\nlist.call()',
        '{"type": "function", "name": "read", "parameters": {"path": "a.txt"}}\n{"name": "list", "parameters": {}}',
        f"```json\n[{R}, {L}]\n```",
        f"```json\n{R}\n```\n```json\n{L}\n```",
        f"<think>hm</think>{R}\n{L}",
        f"[TOOL_CALLS][{R}, {L}]</s>",
        f'[TOOL_CALLS] [{R[:-1]}, "id": "abcdefghi"}}, {L}]',
        '[TOOL_CALLS]read[ARGS]{"path": "a.txt"}[TOOL_CALLS]list[ARGS]{}</s>',
        '[TOOL_CALLS]read[CALL_ID]xYz012345[ARGS]{"path": "a.txt"}[TOOL_CALLS]list[CALL_ID]1[ARGS]{}',
        f"<|tool_call|>[{R}, {L}]<|/tool_call|>",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>read\n```json\n{"path": "a.txt"}\n```'
        "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>list\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>read<｜tool▁sep｜>{"path": "a.txt"}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>list<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        json.dumps(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.txt"}'}},
                    {"id": "2", "type": "function", "function": {"name": "list", "arguments": ""}},
                ],
            }
        ),
    ]
    assert_all_equal(parse_tool_calls, [(reply, ParsedReply((READ, LIST), "")) for reply in replies])


def test_an_answer_is_not_a_call():
    cases = [
        ("The answer is 42.", "The answer is 42."),
        ("<think>6 * 7</think>\n\n42<|im_end|>", "42"),
        ("6 * 7, so</think> 42", "42"),
        ("", ""),
        ('{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}'),
        ('{"name": "Ada"}', '{"name": "Ada"}'),
        ('{"name": Ada}', '{"name": Ada}'),
        ('It was called with {"name": "read", "arguments": {}}.', None),
        ('{"name": "read", "description": "Reads.", "parameters": {"type": "object"}}', None),  # a schema, quoted
        ('```json\n{"type": "report", "content": [1, 2]}\n```', None),
        ('read.call(path="a.txt") says 42.', None),
        ('I would do read.call(path="a.txt")', None),
        ("print(a=1)", None),
        ('{"role": "assistant", "content": "42", "tool_calls": []}', "42"),
    ]
    expected = [(reply, ParsedReply((), reply if text is None else text)) for reply, text in cases]
    assert_all_equal(parse_tool_calls, expected)


def test_text_beside_calls_is_kept():
    assert parse_tool_calls(f"First.\n<tool_call>{R}</tool_call>\n<think>so</think>Then.").text == "First.\n\nThen."
    assert parse_tool_calls(f"I look.\n```json\n{R}\n```").text == "I look."
    message = {"content": " I look. ", "tool_calls": [{"function": {"name": "list", "arguments": "{}"}}]}
    assert parse_tool_calls(json.dumps(message)).text == "I look."


def test_arguments_from_xml_are_text():
    (call,) = parse_tool_calls("<function=add><parameter=a>1</parameter></function>").calls
    assert (call.arguments, call.typed) == ({"a": "1"}, False)
    assert parse_tool_calls('<function=add>{"a": 1}</function>').calls[0].typed


MARKS = '<tool_call>[TOOL_CALLS]</tool_call><think></think><|python_tag|>```json\n{"name": "x", "arguments": {}}'


def test_markup_within_an_argument_is_part_of_it():
    arguments = {"text": MARKS}
    call = json.dumps({"name": "write", "arguments": arguments})
    cases = []
    for before in ("", "I write it.\n", "<think>a</think>"):
        for reply in (f"<tool_call>{call}</tool_call>", f"[TOOL_CALLS][{call}]", f"[TOOL_CALLS]write[ARGS]{call}"):
            expected = {"name": "write", "arguments": arguments} if "ARGS" in reply else arguments
            cases.append((before + reply, (FunctionCall("write", expected),)))
        if not before.startswith("I"):
            cases.append((before + call, (FunctionCall("write", arguments),)))
    assert_all_equal(lambda reply: parse_tool_calls(reply).calls, cases)


def test_errors_are_reported_with_their_position():
    cases = [
        ("ab<tool_call>read a.txt</tool_call>", "position 3"),
        ('<tool_call>{"name": "read", "arguments": {"path": "a.txt"}', "position 59"),
        ('<tool_call>{"name": "read", "arguments": {"path": a.txt}}</tool_call>', "position 51"),
        (f"<tool_call>{R}</tool_call><tool_call>{{", "position 84"),
        (f"<tool_call>{R} {R}</tool_call>", "position 61"),
        (f"<tool_call>{R}<tool_call>{L}</tool_call>", "close it there with </tool_call>"),
        ("<function=read><parameter=path>a.txt", "never closed"),
        ('<function=read>{"path": "a.txt"', "position 32"),
        ("<|python_tag|>print(1)", "<|python_tag|> at position 1"),
        ("<|python_tag|>print(1)", "1 without the name of a parameter"),
        ('<|python_tag|>read.call(path="a.txt"', "never closed with ')'"),
        ("<|python_tag|>read.call(path=__import__('os'))", "stands \"__import__('os'))"),
        ("<|python_tag|>read.call(path=1, path=2)", "path twice"),
        ("<|python_tag|>read.call(size=1e999)", "too large"),
        ("<|python_tag|>read.call(path={'a': 1, 'a': 2})", "'a' twice"),
        ("<|python_tag|>read.call(path=" + "[" * 500_000, "position 94 stands '[[["),
        ("read.call(path=a.txt)", "write a text as"),
        ("[TOOL_CALLS] read it", "[TOOL_CALLS] at position 1"),
        ('[TOOL_CALLS]read[ARGS]{"path"}', "position 30"),
        ("<｜tool▁calls▁begin｜>read", "position 1 is not followed by <｜tool▁call▁begin｜>"),
        ("x<｜tool▁call▁begin｜>read", "position 2"),
        ("<｜tool▁call▁begin｜>read<｜tool▁sep｜>{} and so on", "position 39"),
        ('{"name": "read", "arguments": {"path": a.txt}}', "position 40"),
        ('Well.\n{"tool_calls": [{"function": {"name": "read"', "position"),
        ('{"tool_calls": [{"function": {"arguments": "{}"}}]}', "no text under 'name'"),
        ('{"tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}', "cannot be read"),
        ('<tool_call>{"name": "a", "arguments": {"b": 1, "b": 2}}</tool_call>', "'b' twice"),
        ('<tool_call>{"name": "a", "arguments": {"b": NaN}}</tool_call>', "NaN"),
        ('<tool_call>{"name": "a", "arguments": {"b": -Infinity}}</tool_call>', "-Infinity"),
        ('<tool_call>{"name": "a", "arguments": {"b": 1e999}}</tool_call>', "too large"),
        ('<tool_call>{"name": "a", "arguments": {"b": ' + "9" * 10_000 + "}}</tool_call>", "too long"),
        (
            '<tool_call>{"name": "a", "arguments": {"b": ' + "[" * 80 + "]" * 80 + "}}</tool_call>",
            "more than 64 levels",
        ),
        ('<tool_call>{"name": "a", "arguments": {"b": ' + "[" * 500_000, "too deeply"),
        ('<tool_call>{"name": "a", "arguments": [1]}</tool_call>', "no JSON object"),
        (f"<tool_call>[{R}, 3]</tool_call>", "Call 2 of the list at position 12"),
        ("<think>I will call it", "inside <think>"),
    ]
    assert_all_refused(parse_tool_calls, cases)


NAMES = st.text("abcXYZ019_.-", min_size=1, max_size=20)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
CALLS = st.lists(
    st.builds(FunctionCall, NAMES, st.dictionaries(st.text("abc_é", min_size=1, max_size=8), VALUES, max_size=3)),
    min_size=1,
    max_size=3,
)


def written(call: FunctionCall, key: str = "arguments") -> str:
    return json.dumps({"name": call.name, key: call.arguments}, ensure_ascii=False)


def as_openai(calls: list[FunctionCall]) -> str:
    functions = [{"name": call.name, "arguments": json.dumps(call.arguments)} for call in calls]
    return json.dumps({"content": "x", "tool_calls": [{"type": "function", "function": one} for one in functions]})


def as_python(call: FunctionCall) -> str:
    return f"{call.name}.call({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


NOTATIONS = {
    "hermes": lambda calls: "\n".join(f"<tool_call>\n{written(call)}\n</tool_call>" for call in calls),
    "llama": lambda calls: "; ".join(written(call, "parameters") for call in calls),
    "python tag": lambda calls: "<|python_tag|>" + "; ".join(written(call, "parameters") for call in calls),
    "llama 3.1": lambda calls: "".join(f"<function={one.name}>{json.dumps(one.arguments)}</function>" for one in calls),
    "llama built in": lambda calls: "; ".join(map(as_python, calls)),
    "python tag, as Python": lambda calls: "<|python_tag|>" + "\n".join(map(as_python, calls)) + "<|eom_id|>",
    "mistral": lambda calls: f"[TOOL_CALLS][{', '.join(map(written, calls))}]</s>",
    "mistral 3": lambda calls: "".join(f"[TOOL_CALLS]{one.name}[ARGS]{json.dumps(one.arguments)}" for one in calls),
    "deepseek": lambda calls: (
        "<｜tool▁calls▁begin｜>"
        + "\n".join(
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{one.name}\n```json\n{json.dumps(one.arguments)}\n```<｜tool▁call▁end｜>"
            for one in calls
        )
        + "<｜tool▁calls▁end｜>"
    ),
    "deepseek 3.1": lambda calls: "".join(
        f"<｜tool▁call▁begin｜>{one.name}<｜tool▁sep｜>{json.dumps(one.arguments)}<｜tool▁call▁end｜>" for one in calls
    ),
    "openai": as_openai,
}


@settings(max_examples=60, deadline=None)
@given(calls=CALLS)
def test_every_call_survives_every_notation(calls):
    replies = [notation(calls) for notation in NOTATIONS.values()]
    cases = [(before + reply, calls) for reply in replies for before in ("", "<think>Let me see.</think>\n")]
    assert_all_equal(lambda reply: list(parse_tool_calls(reply).calls), cases)


@settings(max_examples=200, deadline=None)
@given(name=NAMES, arguments=st.dictionaries(st.text("abc_", min_size=1, max_size=8), TEXTS, max_size=3))
def test_text_survives_xml(name, arguments):
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    reply = f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"
    assert parse_tool_calls(reply).calls == (FunctionCall(name, arguments),)


PIECES = [
    *("<tool_call>", "</tool_call>", "<function=a>", "<function=", "</function>", "<parameter=b>", "</parameter>"),
    *(
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|tool_call|>",
        "<think>",
        "</think>",
        "```json\n",
        "```",
        "\n",
        " ",
    ),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "function",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<|im_end|>",
    ),
    *('{"name": "a"', ', "arguments": {', ', "parameters": {}', "}", "}}", "[", "]", "{", '"', "\\", ";", ",", "read"),
    *("read.call(", "path=", ")", "{'a': "),
    *('{"tool_calls": [', '{"role": "assistant", "content": "x"}', R, L, "\x00", "\ud800", "é", "NaN", "1e999"),
]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=40).map("".join))
def test_any_reply_is_parsed_or_an_invalid_action(reply):
    try:
        found = parse_tool_calls(reply)
    except InvalidAction as error:
        str(error).encode()  # it is sent to the model
    else:
        assert all(isinstance(call.arguments, dict) and call.name for call in found.calls)


def test_time_is_linear_in_the_length_of_a_reply():
    pieces = [
        *PIECES,
        "<think></think>",
        "<tool_call><think>",
        "<function=a><parameter=b>",
        "<function=a><parameter=b></think>",
        '{"name": [\n',
        '{"name": "\n',
        '<tool_call>{"a": "</think>',
        f"<tool_call>{R}</tool_call>",
        f"{R}\n",
        "[TOOL_CALLS]a[ARGS]{}",
        "<|python_tag|>read.call(a=1);",
        "<｜tool▁call▁begin｜>a<｜tool▁sep｜>{}",
    ]
    heads = ("", f"<tool_call>{R}</tool_call>\n")
    assert_linear_time(parse_tool_calls, [(head, piece, "") for piece in pieces for head in heads])

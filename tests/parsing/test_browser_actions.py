"""Browser actions in replies: all notations of models, one action per turn, never executed, with error messages that
name valid actions.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsing.checks import assert_all_equal, assert_all_refused, assert_linear_time

from rllm_gym.core import InvalidAction
from rllm_gym.parsing.browser_actions import (
    ACTIONS,
    BrowserAction,
    action_tools,
    describe_actions,
    parse_browser_action,
)
from rllm_gym.parsing.literal_calls import read_call

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def test_calls_in_all_notations_of_models():
    cases = [
        ("click(12)", BrowserAction("click", element=12)),
        ('click("12")', BrowserAction("click", element=12)),
        ("click('[12]')", BrowserAction("click", element=12)),
        ("click(element=12)", BrowserAction("click", element=12)),
        ('click(12, "right")', BrowserAction("click", element=12, option="right")),
        ("click(12, button='middle')", BrowserAction("click", element=12, option="middle")),
        ("dblclick( 3 )", BrowserAction("dblclick", element=3)),
        ('fill(3, "a, b) c")', BrowserAction("fill", element=3, text="a, b) c")),
        ("fill(3, 'it\\'s')", BrowserAction("fill", element=3, text="it's")),
        ('fill(3, """a "b" c""")', BrowserAction("fill", element=3, text='a "b" c')),
        ('fill(3, "a\nb")', BrowserAction("fill", element=3, text="a\nb")),
        ('fill(3, "\\ud83d\\ude00\\u00e9\\x41\\n\\/")', BrowserAction("fill", element=3, text="😀éA\n/")),
        ("fill(3, 1.50)", BrowserAction("fill", element=3, text="1.50")),
        ('fill(3, "")', BrowserAction("fill", element=3, text="")),
        ("clear(3)", BrowserAction("clear", element=3)),
        ('type(3, "x")', BrowserAction("type", element=3, text="x")),
        ("check(5)", BrowserAction("check", element=5)),
        ('select(4, "a")', BrowserAction("select", element=4, text="a", options=("a",))),
        ('select(4, "a", "b")', BrowserAction("select", element=4, text="a", options=("a", "b"))),
        ("select(4, ['a', 'b'])", BrowserAction("select", element=4, text="a", options=("a", "b"))),
        ('press("Enter")', BrowserAction("press", text="Enter")),
        ('press(3, "Control+a")', BrowserAction("press", element=3, text="Control+a")),
        ('press(key="Tab")', BrowserAction("press", text="Tab")),
        ("drag(3, 4)", BrowserAction("drag", element=3, target=4)),
        ('scroll("down")', BrowserAction("scroll", text="down")),
        ('scroll("up", 7)', BrowserAction("scroll", element=7, text="up")),
        ('goto("http://a.test/?q=(1)")', BrowserAction("goto", text="http://a.test/?q=(1)")),
        ("back()", BrowserAction("back")),
        ("new_tab()", BrowserAction("new_tab")),
        ("new_tab('/x')", BrowserAction("new_tab", text="/x")),
        ("close_tab()", BrowserAction("close_tab")),
        ("switch_tab(0)", BrowserAction("switch_tab", index=0)),
        ("mouse_click(320, 200.5)", BrowserAction("mouse_click", x=320.0, y=200.5)),
        ('answer("42")', BrowserAction("answer", text="42")),
        ("answer(42)", BrowserAction("answer", text="42")),
        ("answer()", BrowserAction("answer")),
        ('report_infeasible("no")', BrowserAction("report_infeasible", text="no")),
        ("click(12,)", BrowserAction("click", element=12)),
        ("click(12);", BrowserAction("click", element=12)),
        ("click(12)  # the button", BrowserAction("click", element=12)),
    ]
    places = [
        "{}",
        "```\n{}\n```",
        "I will do it.\n```python\n{}\n```\nThat is all.",
        "<think>click(99) or ```click(98)```?</think>\n```{}```",
        "<action>{}</action>",
        "``` \nback()\n``` or rather\n```\n{}\n```<|im_end|>",
    ]
    assert_all_equal(parse_browser_action, [(place.format(call), action) for call, action in cases for place in places])


def test_a_call_on_the_last_line_counts_and_one_within_the_prose_does_not():
    assert parse_browser_action("Should I go back()?\nNo.\nclick(3)").element == 3
    assert parse_browser_action("I see it.\nAction: click(3)").element == 3
    assert parse_browser_action("I see it.\n`click(3)`").element == 3
    for reply in ("I would click(3) now.", "click(3)\nis what I would do", "First click(1), then\nwe shall see."):
        with pytest.raises(InvalidAction):
            parse_browser_action(reply)


def test_calls_as_browsergym_writes_them():
    """Its names, order and keywords, with element ids as texts."""
    cases = [
        ("noop()", BrowserAction("wait")),
        ("noop(500)", BrowserAction("wait", ms=500.0)),
        ("scroll(0, 200)", BrowserAction("mouse_wheel", x=0.0, y=200.0)),
        ("scroll(-50.2, -100.5)", BrowserAction("mouse_wheel", x=-50.2, y=-100.5)),
        ("scroll(delta_x=0, delta_y=9)", BrowserAction("mouse_wheel", x=0.0, y=9.0)),
        ("fill('237', 'example')", BrowserAction("fill", element=237, text="example")),
        ("fill('34', 'Montre', True)", BrowserAction("fill", element=34, text="Montre", by_keys=True)),
        ("fill(bid='34', value='M', enable_autocomplete_menu=False)", BrowserAction("fill", element=34, text="M")),
        ("check('55')", BrowserAction("check", element=55)),
        ("uncheck(bid='55')", BrowserAction("uncheck", element=55)),
        ('select_option("48", "blue")', BrowserAction("select", element=48, text="blue", options=("blue",))),
        ("select_option(bid='48', options=['a', 'b'])", BrowserAction("select", 48, "a", options=("a", "b"))),
        ('click("48", button="middle", modifiers=["Shift"])', BrowserAction("click", 48, option="middle",
                                                                           modifiers=("Shift",))),
        ("dblclick('12', 'right')", BrowserAction("dblclick", element=12, option="right")),
        ("hover('8')", BrowserAction("hover", element=8)),
        ("press('88', 'Meta+Shift+t')", BrowserAction("press", element=88, text="Meta+Shift+t")),
        ("press(bid='88', key_comb='a')", BrowserAction("press", element=88, text="a")),
        ("focus('4')", BrowserAction("focus", element=4)),
        ("clear('9')", BrowserAction("clear", element=9)),
        ("drag_and_drop('56', '498')", BrowserAction("drag", element=56, target=498)),
        ("drag_and_drop(from_bid='56', to_bid='498')", BrowserAction("drag", element=56, target=498)),
        ("mouse_move(65.2, 158.5)", BrowserAction("mouse_move", x=65.2, y=158.5)),
        ("mouse_up(47, 252, 'right')", BrowserAction("mouse_up", option="right", x=47.0, y=252.0)),
        ("mouse_down(140.2, 580)", BrowserAction("mouse_down", x=140.2, y=580.0)),
        ("mouse_click(56, 712, 'right')", BrowserAction("mouse_click", option="right", x=56.0, y=712.0)),
        ("mouse_dblclick(5, 236)", BrowserAction("mouse_dblclick", x=5.0, y=236.0)),
        ("mouse_drag_and_drop(1, 2, 3, 4.5)", BrowserAction("mouse_drag_and_drop", x=1.0, y=2.0, to_x=3.0, to_y=4.5)),
        ("keyboard_press('Control+a')", BrowserAction("press", text="Control+a")),
        ("keyboard_down('Shift')", BrowserAction("keyboard_down", text="Shift")),
        ("keyboard_up('c')", BrowserAction("keyboard_up", text="c")),
        ("keyboard_type('Hi')", BrowserAction("type", text="Hi")),
        ("keyboard_insert_text('Hi')", BrowserAction("type", text="Hi")),
        ("goto('http://a.test')", BrowserAction("goto", text="http://a.test")),
        ("go_back()", BrowserAction("back")),
        ("go_forward()", BrowserAction("forward")),
        ("new_tab()", BrowserAction("new_tab")),
        ("tab_close()", BrowserAction("close_tab")),
        ("tab_focus(index=2)", BrowserAction("switch_tab", index=2)),
        ("upload_file('572', 'cv.pdf')", BrowserAction("upload_file", 572, "cv.pdf", options=("cv.pdf",))),
        ("upload_file(bid='3', file=['a', 'b'])", BrowserAction("upload_file", 3, "a", options=("a", "b"))),
        ("mouse_upload_file(132, 547, 'a')", BrowserAction("mouse_upload_file", text="a", options=("a",), x=132.0,
                                                           y=547.0)),
        ("send_msg_to_user('1751.')", BrowserAction("answer", text="1751.")),
        ("report_infeasible('no')", BrowserAction("report_infeasible", text="no")),
        ('{"name": "select_option", "arguments": {"bid": "3", "options": ["a"]}}',
         BrowserAction("select", 3, "a", options=("a",))),
    ]  # fmt: skip
    assert_all_equal(parse_browser_action, cases)


def test_tool_calls_in_every_dialect():
    calls = [
        '<tool_call>{"name": "fill", "arguments": {"element": 3, "text": "x"}}</tool_call>',
        '{"name": "fill", "arguments": {"element": 3, "text": "x"}}',
        '{"name": "fill", "parameters": {"element": "3", "text": "x"}}',
        '{"tool_calls": [{"type": "function", "function": {"name": "fill", "arguments": '
        '"{\\"element\\": 3, \\"text\\": \\"x\\"}"}}]}',
        "<tool_call>\n<function=fill>\n<parameter=element>\n3\n</parameter>\n<parameter=text>\nx\n</parameter>\n"
        "</function>\n</tool_call>",
        "<function=fill><parameter=element>3</parameter><parameter=text>x</parameter></function>",
        '```json\n{"name": "fill", "arguments": {"element": 3.0, "text": "x"}}\n```',
        '```\n<tool_call>{"name": "fill", "arguments": {"element": 3, "text": "x"}}</tool_call>\n```',
    ]
    replies = [before + call for call in calls for before in ("", "<think>\nclick(1)\n</think>\n\n", "I fill it in.\n")]
    assert_all_equal(parse_browser_action, [(reply, BrowserAction("fill", element=3, text="x")) for reply in replies])


def test_fences_within_a_tool_call_are_text():
    text = "```\nclick(1)\n```"
    call = json.dumps({"name": "fill", "arguments": {"element": 3, "text": text}})
    assert parse_browser_action(f"<tool_call>{call}</tool_call>").text == text
    for text in ("<tool_call>", "</think>", "a ```b``` c", "<think>", "<|im_end|>"):
        for written in (f'fill(3, "{text}")', f'````\nfill(3, "{text}")\n````'):
            assert parse_browser_action(written).text == text


def test_errors_name_valid_alternatives():
    cases = [
        ("", "holds no action"),
        ("   \n", "holds no action"),
        ("I do not know.", "its last line is 'I do not know.'"),
        ("<think>click(1)", "ends inside <think>"),
        ("```\n```", "is empty"),
        ("click(1)\nclick(2)", "more than one action"),
        ("```\nclick(1)\nclick(2)\n```", "more than one action"),
        ("```\nclick(1); click(2)\n```", "more than one action"),
        ("```\nclick(1) and more\n```", "goes on after the action: 'and more'"),
        ("```\nthe button\n```", "is 'the button', which is no action"),
        ("clik(3)", "There is no action 'clik'. Did you mean click(element"),
        ("Click(3)", "There is no action 'Click'. Did you mean click(element"),
        ("click()", "click lacks its element: click(element, "),
        ("click(-1)", "whole number such as 12"),
        ("click(1.5)", "whole number such as 12"),
        ("click(True)", "whole number such as 12"),
        ("click(None)", "lacks its element"),
        ("click(99999999999)", "whole number such as 12"),
        ("click([1])", "whole number such as 12"),
        ('click(3, "double")', "one of left, right, middle"),
        ('click(3, "left", 1)', "one of Alt, Control, ControlOrMeta, Meta, Shift"),
        ('fill(3, "x", "yes")', "it is true or false"),
        ("fill('a3', 'x')", "whole number such as 12"),
        ("drag_to(3, 4)", "lacks its to_y"),
        ('handle_dialog("yes")', "one of accept, dismiss"),
        ("tab_focus()", "switch_tab lacks its tab"),
        ("keyboard_press('a', 'b')", "keyboard_press takes at most 1 arguments"),
        ("click(3, element=4)", "given element twice"),
        ("click(elemnt=3)", "takes no 'elemnt'. Did you mean element?"),
        ("click(button='left', 3)", "cannot follow one with a name"),
        ("fill(3, text)", "stands in no quotes"),
        ("fill(3, “x”)", "straight quotes"),
        ('fill(3, "say "hi"")', "a quote within a text is written"),
        ('fill(3, "open)', 'The text that opens at position 9 is never closed with "'),
        ("fill(3, 'x'", "is never closed with ')'"),
        ('fill(3, "\\ud800")', "surrogate"),
        ("fill(3, '\ud800')", "surrogate"),
        ('fill(3, "\\N{NO SUCH THING}")', "There is no character"),
        ('fill(3, f"{x}")', "stands in no quotes"),
        ("fill(3, 1+1)", "stands '+1)'"),
        ("fill(3, open('/etc/passwd'))", "stands in no quotes"),
        ('scroll("sideways")', "one of up, down, left, right"),
        ("select(4, [])", "give one option"),
        ('mouse_click("left", 2)', "number of pixels"),
        ('{"name": "click", "arguments": {"element": {"a": 1}}}', "whole number such as 12"),
        ('{"name": "click", "arguments": {}}', "lacks its element"),
        ('{"name": "click", "arguments": {"element": 3', "is not JSON"),
        ("<tool_call>{}</tool_call>", "no text under 'name'"),
        ('<tool_call>{"name": "back"}</tool_call><tool_call>{"name": "back"}</tool_call>', "2 tool calls"),
        ("__import__('os').system('ls')", "nothing was done"),
    ]
    assert_all_refused(parse_browser_action, cases)


@given(texts, st.integers(0, 10**9 - 1))
def test_any_text_can_be_written_as_a_python_or_json_string(text, number):
    action = BrowserAction("fill", element=number, text=text)
    for written in (repr(text), json.dumps(text), json.dumps(text, ensure_ascii=False)):
        assert parse_browser_action(f"fill({number}, {written})") == action
    call = json.dumps({"name": "fill", "arguments": {"element": number, "text": text}})
    assert parse_browser_action(f"<tool_call>{call}</tool_call>") == action


@given(st.text(max_size=200) | st.text("click(12)\"'\\`{}[]<>/ \n\t=,#;", max_size=60))
def test_any_reply_is_an_action_or_an_error_message(reply):
    for text in (reply, f"```\n{reply}\n```", f"click({reply})", f"fill(1, {reply})"):
        output = ""
        try:
            action = parse_browser_action(text)
            assert action.name in ACTIONS
            output = action.text or action.name
        except InvalidAction as error:
            output = str(error)
        assert output.encode()


def test_time_is_linear_in_the_reply_and_the_error_message_is_short():
    def read(reply: str) -> None:
        output = ""
        try:
            parse_browser_action(reply)
        except InvalidAction as error:
            output = str(error)
        assert len(output) < 2_000

    texts = [
        ('fill(3, "', "a", ""),
        ('fill(3, "', "\\n", '")'),
        ("fill(3, ", "(", ""),
        ("fill(3, ", "9", ")"),
        ("", "click", ""),
        ("", "click(", ""),
        ("", "click(1)\n", ""),
        ("", " ", "click(1)"),
        ("click(1)", " ;", "x"),
        ("", "```", ""),
        ("", '{"name":', ""),
        ("", "<tool_call>", ""),
        ("", "<think>", ""),
        ("click(1, ", "a=1, ", ")"),
        ("click(1", " ", ")"),
        ('fill(3, """', '""', ""),
    ]
    assert_linear_time(read, texts)


def test_error_positions_count_from_one():
    assert read_call("click(12) x").end == len("click(12)")
    with pytest.raises(InvalidAction, match="At position 7 stands 'x\\)'"):
        read_call("click(x)")


def test_the_prompt_and_the_tools_name_the_same_actions_and_what_they_show_can_be_parsed():
    for tabs in (True, False):
        for mouse in (True, False):
            lines = describe_actions(tabs=tabs, mouse=mouse).splitlines()
            tools = [item["function"] for item in action_tools(tabs=tabs, mouse=mouse)]
            assert [line.partition("(")[0] for line in lines] == [item["name"] for item in tools]
            assert ("switch_tab" in {item["name"] for item in tools}) is tabs
            assert ("mouse_click" in {item["name"] for item in tools}) is mouse
    for signature in ACTIONS.values():
        assert parse_browser_action(signature.example).name == signature.name
    for tool in tools:
        given_values = {"integer": 1, "number": 2.5, "string": "x", "boolean": True}
        properties = tool["parameters"]["properties"]
        arguments = {
            name: schema["enum"][0] if "enum" in schema else given_values.get(schema.get("type"), "x")
            for name, schema in properties.items()
            if name in tool["parameters"]["required"] or "anyOf" not in schema
        }
        call = json.dumps({"name": tool["name"], "arguments": arguments})
        assert parse_browser_action(call).name == tool["name"]
        assert set(tool["parameters"]["required"]) <= set(properties)

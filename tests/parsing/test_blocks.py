"""The last block of a reply: fences and tags as models write them, closed or cut off."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from parsing.checks import assert_all_equal

from rllm_gym.parsing.blocks import Block, last_block

safe_text = st.text(max_size=40).map(lambda text: text.replace("`", "'").replace("<", "("))


def test_blocks_as_models_write_them():
    cases = [
        ("```x```", "x", "", True),
        ("```python\nprint(1)\n```", "print(1)\n", "python", True),
        ("``` python 3 \n1\n```", "1\n", "python 3", True),
        ("````\n```inner```\n````", "```inner```\n", "", True),
        ("```a``` ```b```", "b", "", True),
        ("```a``` ```b", "a", "", True),
        ("```a", "a", "", False),
        ("```py\na", "a", "py", False),
        ("<action>a</action>", "a", "action", True),
        ("<Action >a\nb</ACTION>", "a\nb", "action", True),
        ("<action>a</action><action>b", "a", "action", True),
        ("<action>a", "a", "action", False),
        ("<answer>x <move>y</move> z</answer>", "y", "move", True),
        ("</action>a<action>b</action>", "b", "action", True),
        ("<action>a<action>b</action>", "b", "action", True),
        ("```a``` <answer>b</answer>", "b", "answer", True),
        ("<answer>b</answer> ```a```", "a", "", True),
        ("``````", "", "", False),  # six backticks open a longer fence that is never closed
    ]
    assert_all_equal(last_block, [(text, Block(*block)) for text, *block in cases])


def test_no_block():
    texts = ["", "no block", "`one`", "``two``", "<b>x</b>", "</action>", "< action>x</ action>"]
    assert_all_equal(last_block, [(text, None) for text in texts])


def test_tags_are_chosen_by_the_caller():
    assert last_block("<command>ls</command>") is None
    assert last_block("<command>ls</command>", tags=("command",)).content == "ls"
    assert last_block("<a.b>x</a.b> <aXb>y</aXb>", tags=("a.b",)).content == "x"
    assert last_block("<action>x</action> ```y```", tags=()).content == "y"


@given(safe_text, safe_text, safe_text)
def test_the_content_of_the_last_block_is_returned_unchanged(before, inside, after):
    assert last_block(f"{before}<action>{inside}</action>{after}").content == inside
    assert last_block(f"{before}\n```\n{inside}\n```\n{after}").content == f"{inside}\n"


@given(st.text(st.sampled_from(list("`<>/action \n")) | st.characters(), max_size=100))
def test_no_text_raises_an_error(text):
    block = last_block(text)
    assert block is None or block.content in text

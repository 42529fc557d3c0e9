"""Moves on a grid: accepted notations, feedback for everything else, and linear time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from parsing.checks import assert_all_equal, assert_all_refused, assert_linear_time

from rllm_gym.core import InvalidAction
from rllm_gym.parsing.moves import Move, parse_move

FORMS = {
    Move.LEFT: ["left", "LEFT", "west", "←", "⬅️", "0"],
    Move.DOWN: ["down", "Down", "south", "↓", "⬇️", "1"],
    Move.RIGHT: ["right", "rIGHT", "east", "→", "➡️", "2"],
    Move.UP: ["up", "UP", "north", "↑", "⬆️", "3"],
}
EVERY_FORM = [(form, move) for move, forms in FORMS.items() for form in forms]


def test_every_accepted_form_in_every_place():
    places = [
        "{}",
        "  {}\n",
        "{}.",
        "**{}**",
        "`{}`",
        "Move {}",
        "Action: {}",
        "```{}```",
        "```\n{}\n```",
        "```text\n{}\n```",
        "```{}\n```",
        "````{}````",
        "The goal lies there, so\n```{}```",
        "first ```jump```, no: ```{}``` it is",
        "<action>{}</action>",
        "<ACTION> {} </ACTION >",
        "<answer>{}</answer>",
        "<move>{}</move>",
        "<answer><action>{}</action></answer>",
        "<action>```{}```</action>",
        "```<action>{}</action>```",
        "I think ```{}",
        "so <action>{}",
        "<think>```nonsense``` or <action></think>{}",
        "<think>go left\nor right?</think>\n\n```{}```",
        "thoughts that the prompt began </think> {}",
        "```nowhere```\n<action>{}</action>",
        "<action>nowhere</action>\n```{}```",
    ]
    assert_all_equal(parse_move, [(place.format(form), move) for place in places for form, move in EVERY_FORM])


def test_anything_else_is_invalid_with_exact_feedback():
    cases = [
        ("", "the reply is empty"),
        (" \n\t", "the reply is empty"),
        ("**.**", "the reply is empty"),
        ("jump", "'jump'"),
        ("4", "'4'"),
        ("-1", "'-1'"),
        ("I will go up", "'I will go up'"),
        ("go up now", "not a move alone"),
        ("do not go up", "not a move alone"),
        ("up down", "2 moves (up, down)"),
        ("up up", "2 moves (up, up)"),
        ("```up```\n```down, left```", "the last block holds 2 moves (down, left)"),
        ("```up\ndown```", "2 moves (up, down)"),
        ("```up``` and then ```jump```", "the last block is 'jump'"),
        ("```up``` and then ``` ```", "the last block is empty"),
        ("up <action></action>", "the last block is empty"),
        ("<action></action>", "the last block is empty"),
        ("I go up ```", "the unclosed block is empty"),
        ("<think>up", "ends inside <think>"),
        ("```up``` <think> hm", "ends inside <think>"),
        ("x" * 5000, "5000 characters"),
        ("\ud800", "'\\ud800'"),
        ("\\boxed{up}", "not a move alone"),
        ("upright", "'upright'"),
        ("²", "'²'"),
    ]
    assert_all_refused(parse_move, cases, always="up, down, left or right", limit=400)


@given(st.text(st.sampled_from(list("`<>/ \nupdownleftright0123↑actionthink.")) | st.characters(), max_size=80))
def test_any_text_is_a_move_or_an_invalid_action(reply):
    try:
        assert parse_move(reply) in Move
    except InvalidAction as error:
        str(error).encode()


@given(st.text(max_size=60), st.sampled_from(EVERY_FORM))
def test_a_move_in_the_last_block_is_used_after_any_text(prose, form_and_move):
    form, move = form_and_move
    prose = prose.replace("`", "'").replace("<", "(")
    assert parse_move(f"{prose}```{form}```") is move
    assert parse_move(f"```jump``` {prose} <action>{form}</action>") is move


def test_time_is_linear_in_the_length_of_a_hostile_reply():
    pieces = [
        *("`", "```", "````", "```up```", "``` ", "<", "<action", "<action ", "<action" + " " * 7, "<action>"),
        *("</action", "</action>", "<action>up</action>", "<answer><move>", "<think>", "</think>"),
        *("up ", " ", "\n", "↑"),
    ]
    assert_linear_time(parse_move, [("", piece, "") for piece in pieces])

"""One choice out of a reply: in the last block or alone, never guessed, in bounded time."""

import time

import pytest

from rllm_gym.core import InvalidAction
from rllm_gym.parsing.choices import parse_choice


@pytest.mark.parametrize(
    "reply",
    [
        "B", "b", " **B** ", "```B```", "```\nB\n```", "```b\n```", "<answer>B</answer>", "verdict: B",
        "<think>A</think>B", "<ANSWER> (B) </ANSWER>", "A? no.\n```A``` then ```B```",
    ],
)  # fmt: skip
def test_choices_are_read(reply):
    assert parse_choice(reply, ("A", "B"), "a verdict") == "B"


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "AB",
        "A B",
        "A or B",
        "<think>B",
        "it is B",
        "```A B```",
        "``````",
        "C",
        "\ud800",
        "B" * 10**6,
        "```" * 10**5,
    ],
)
def test_anything_else_says_what_is_accepted(reply):
    start = time.process_time()
    with pytest.raises(InvalidAction, match="Give a verdict \\(A, B\\)") as caught:
        parse_choice(reply, ("A", "B"), "a verdict")
    assert time.process_time() - start < 1
    assert len(str(caught.value)) < 300
    str(caught.value).encode()

"""One choice in a reply: in the last block or alone, never guessed, in bounded time."""

from parsing.checks import assert_all_equal, assert_all_refused, assert_linear_time

from rllm_gym.parsing.choices import parse_choice


def verdict(reply: str) -> str:
    return parse_choice(reply, ("A", "B"), "a verdict")


def test_choices_are_parsed():
    replies = [
        "B", "b", " **B** ", "```B```", "```\nB\n```", "```b\n```", "<answer>B</answer>", "verdict: B",
        "<think>A</think>B", "<ANSWER> (B) </ANSWER>", "A? no.\n```A``` then ```B```",
    ]  # fmt: skip
    assert_all_equal(verdict, [(reply, "B") for reply in replies])


def test_anything_else_is_an_error_that_lists_the_choices():
    replies = [
        *("", "AB", "A B", "A or B", "<think>B", "it is B", "```A B```", "``````", "C", "\ud800"),
        *("B" * 10**6, "```" * 10**5),
    ]
    assert_all_refused(verdict, [(reply, "Give a verdict (A, B)") for reply in replies], limit=300)


def test_time_is_linear_in_the_length_of_a_reply():
    assert_linear_time(verdict, [("", piece, "") for piece in ("B", "```", " ", "<answer>", "<think>", "</think>")])

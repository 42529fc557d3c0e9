r"""The boxed answer of a reply is found, and nothing else is accepted as one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from parsing.checks import assert_all_equal, assert_linear_time

from rllm_gym.parsing.boxed import last_boxed, strip_thinking


def test_the_last_box_of_the_answer_is_found():
    cases = [
        (r"So it is $\boxed{42}$.", "42"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed { 7 }", "7"),
        (r"\boxed 5", "5"),
        (r"$\boxed 5$", "5"),
        (r"it is \boxed 12.5.", "12.5"),
        (r"$\boxed \frac{1}{2}$", r"\frac{1}{2}"),
        (r"\fbox{99}", "99"),
        (r"\boxed{1}, \fbox{2}", "2"),
        (r"\fbox{1}, \boxed{2}", "2"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \mid x > 0 \right\}}", r"\left\{ x \mid x > 0 \right\}"),
        (r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        (r"\boxed{a \\}", r"a \\"),
        (r"} } \boxed{3} } }", "3"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{}", ""),
        ("\\\\boxed{4}", "4"),
        ("\\boxed{1}\n\\boxed{two\nlines}", "two\nlines"),
        (r"<think>\boxed{1}</think> \boxed{2}", "2"),
        (r"<think>a</think><think>b \boxed{1}</think> \boxed{2}", "2"),
        (r"thinking was begun by the prompt \boxed{1}</think>\boxed{2}", "2"),
    ]
    assert_all_equal(last_boxed, cases)


def test_a_reply_without_an_answer_is_none():
    replies = [
        "",
        "42",
        r"\boxedness{5}",
        r"\boxed",
        r"\boxed{",
        r"\boxed{5",
        r"\boxed{\frac{1}{2}",
        r"\boxed{1} and, cut off, \boxed{2",
        r"<think>\boxed{5}",
        r"\boxed{5}<think>\boxed{6}",
        r"<think>a</think>\boxed{5}<think>wait",
        r"<think>\boxed{5}</think> so that is it",
        r"\boxed $5$",
    ]
    assert_all_equal(last_boxed, [(reply, None) for reply in replies])


def test_thinking_is_stripped_up_to_its_last_end():
    assert strip_thinking("no thoughts") == "no thoughts"
    assert strip_thinking("<think>a</think>b</think>c") == "c"
    assert strip_thinking("<think>a</think>b<think>c") is None
    assert strip_thinking("<think>") is None
    assert strip_thinking("") == ""


balanced = st.recursive(
    st.text(alphabet="ab12+-^_ .,()[]\n", max_size=8),
    lambda inner: st.lists(
        st.one_of(inner, inner.map(lambda s: "{" + s + "}"), st.just(r"\{"), st.just(r"\}")), max_size=4
    ).map("".join),
    max_leaves=12,
)


@given(
    before=st.text(alphabet="ab {}$\\", max_size=30), content=balanced, after=st.text(alphabet="ab {}$.", max_size=30)
)
def test_any_balanced_content_is_returned_whole(before, content, after):
    assert last_boxed(f"{before} \\boxed{{{content}}}{after}") == content.strip()


@given(st.text())
def test_no_text_raises_an_error(text):
    for reply in (text, f"\\boxed{{{text}", f"\\boxed {text}", f"<think>{text}</think>{text}"):
        answer = last_boxed(reply)
        assert answer is None or answer in reply


def test_time_is_linear_in_the_length_of_a_text():
    pieces = [r"\boxed{", "{", "}", "\\", r"\boxed", r"\boxed{}", "<think>", "</think>", r"\{", r"\boxed ", " "]
    around = [("", ""), (r"\boxed{", ""), ("", r"\boxed{1}")]
    assert_linear_time(last_boxed, [(head, piece, tail) for piece in pieces for head, tail in around])

import pytest
from marktext.inline import inline_html, plain_text


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("*a* **b** ~~c~~ _d_", "<em>a</em> <strong>b</strong> <del>c</del> <em>d</em>"),
        ("**a *b* c**", "<strong>a <em>b</em> c</strong>"),
        ("*a **b** c*", "<em>a <strong>b</strong> c</em>"),
        ("2 * 3 * 4", "2 * 3 * 4"),
        ("*open", "*open"),
        ("**open", "**open"),
        ("snake_case_name", "snake_case_name"),
        ("_a_b_", "<em>a_b</em>"),
        ("a*b*c", "a<em>b</em>c"),
        ("*a *", "*a *"),
    ],
)
def test_emphasis(text, html):
    assert inline_html(text) == html


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("`a*b*`", "<code>a*b*</code>"),
        ("`<b>`", "<code>&lt;b&gt;</code>"),
        ("`` a`b ``", "<code>a`b</code>"),
        ("`a\nb`", "<code>a b</code>"),
        ("`open", "`open"),
        ("*a `*` b*", "<em>a <code>*</code> b</em>"),
    ],
)
def test_code_spans(text, html):
    assert inline_html(text) == html


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("[a](/b)", '<a href="/b">a</a>'),
        ("[a](/b \"c 'd'\")", '<a href="/b" title="c &#x27;d&#x27;">a</a>'),
        ("[*a*](/b)", '<a href="/b"><em>a</em></a>'),
        ("[a [b] c](/d)", '<a href="/d">a [b] c</a>'),
        ("[a](/b_(c))", '<a href="/b_(c)">a</a>'),
        ("[a](<b c>)", '<a href="b c">a</a>'),
        ("[a](/b?c=1&d=2)", '<a href="/b?c=1&amp;d=2">a</a>'),
        ("[a]", "[a]"),
        ("[a", "[a"),
        ("[a] (b)", "[a] (b)"),
        ("![a *b*](c.png)", '<img src="c.png" alt="a b">'),
        ("<https://example.org/?a&b>", '<a href="https://example.org/?a&amp;b">https://example.org/?a&amp;b</a>'),
        ("<mailto:me@example.org>", '<a href="mailto:me@example.org">me@example.org</a>'),
        ("!", "!"),
    ],
)
def test_links(text, html):
    assert inline_html(text) == html


@pytest.mark.parametrize("address", ["javascript:alert(1)", "JavaScript:x", "data:text/html,x", "vbscript:x"])
def test_dangerous_addresses_are_dropped(address):
    assert inline_html(f"[a]({address})") == '<a href="">a</a>'
    assert inline_html(f"![a]({address})") == '<img src="" alt="a">'


@pytest.mark.parametrize(
    ("text", "html"),
    [
        (r"\*a\*", "*a*"),
        (r"\[a](b)", "[a](b)"),
        (r"\\", "\\"),
        (r"\a", r"\a"),
        (r"*a\*b*", "<em>a*b</em>"),
        (r"[a\]b](c)", '<a href="c">a]b</a>'),
        ("a \\", "a \\"),
    ],
)
def test_backslashes(text, html):
    assert inline_html(text) == html


def test_text_is_escaped():
    assert inline_html('<script>"&') == '&lt;script&gt;"&amp;'


def test_two_spaces_break_a_line():
    assert inline_html("a  \nb\nc") == "a<br>\nb\nc"


def test_plain_text_has_no_markup():
    assert plain_text("*a* `<b>` [c](d) & e") == "a <b> c & e"

from marktext import to_html


def test_a_document():
    assert to_html("# Hello\n\nSome *words* and `code`.") == (
        '<h1 id="hello">Hello</h1>\n<p>Some <em>words</em> and <code>code</code>.</p>'
    )


def test_code_blocks_are_escaped_and_end_with_a_line_feed():
    assert to_html("```html\n<b>\n```") == '<pre><code class="language-html">&lt;b&gt;\n</code></pre>'
    assert to_html("```\n```") == "<pre><code></code></pre>"


def test_tight_items_have_no_paragraphs():
    assert to_html("- a\n- b") == "<ul>\n<li>a</li>\n<li>b</li>\n</ul>"
    assert to_html("- a\n  - b") == "<ul>\n<li>a\n<ul>\n<li>b</li>\n</ul>\n</li>\n</ul>"


def test_items_of_several_paragraphs_have_them():
    assert to_html("- a\n\n  b") == "<ul>\n<li>\n<p>a</p>\n<p>b</p>\n</li>\n</ul>"


def test_numbered_lists_keep_their_start():
    assert to_html("1. a") == "<ol>\n<li>a</li>\n</ol>"
    assert to_html("3. a") == '<ol start="3">\n<li>a</li>\n</ol>'


def test_quotes_and_rules():
    assert to_html("> a\n\n---") == "<blockquote>\n<p>a</p>\n</blockquote>\n<hr>"


def test_a_break_at_the_end_of_a_paragraph_is_nothing():
    assert to_html("a  \n") == "<p>a</p>"

from marktext import parse_blocks, to_html
from marktext.nodes import CodeBlock, Heading, ListBlock, Paragraph, Quote, Rule


def test_headings():
    assert parse_blocks("# One\n### Three ###\n####### seven") == [
        Heading(1, "One", "one"),
        Heading(3, "Three", "three"),
        Paragraph("####### seven"),
    ]


def test_a_heading_needs_a_space():
    assert parse_blocks("#hash") == [Paragraph("#hash")]


def test_closing_marks_need_a_space_too():
    assert parse_blocks("# C#") == [Heading(1, "C#", "c")]
    assert parse_blocks("## C# ##") == [Heading(2, "C#", "c")]


def test_paragraphs_are_separated_by_blank_lines():
    assert parse_blocks("one\ntwo\n\n\nthree\n") == [Paragraph("one\ntwo"), Paragraph("three")]


def test_every_kind_of_line_end():
    assert parse_blocks("one\r\n\r\ntwo\rthree") == [Paragraph("one"), Paragraph("two\nthree")]


def test_fenced_code():
    assert parse_blocks("```python\nx = 1\n\n# no heading\n```\nafter") == [
        CodeBlock("x = 1\n\n# no heading", "python"),
        Paragraph("after"),
    ]


def test_a_longer_fence_holds_a_shorter_one():
    assert parse_blocks("````\n```\n````") == [CodeBlock("```")]
    assert parse_blocks("~~~\n```\n~~~~") == [CodeBlock("```")]


def test_an_open_fence_goes_on_to_the_end():
    assert parse_blocks("```\na\n\nb") == [CodeBlock("a\n\nb")]


def test_rules():
    assert parse_blocks("---\n* * *\n___\n--") == [Rule(), Rule(), Rule(), Paragraph("--")]


def test_quotes_hold_blocks():
    assert parse_blocks("> # T\n> one\n>\n>two\nout") == [
        Quote([Heading(1, "T", "t"), Paragraph("one"), Paragraph("two")]),
        Paragraph("out"),
    ]


def test_quotes_nest():
    assert parse_blocks("> a\n> > b") == [Quote([Paragraph("a"), Quote([Paragraph("b")])])]


def test_lists():
    assert parse_blocks("- a\n- b\n\nafter") == [
        ListBlock(False, 1, [[Paragraph("a")], [Paragraph("b")]]),
        Paragraph("after"),
    ]


def test_a_numbered_list_begins_with_its_first_number():
    assert parse_blocks("7. a\n8) b") == [ListBlock(True, 7, [[Paragraph("a")], [Paragraph("b")]])]


def test_bullets_and_numbers_are_different_lists():
    assert [block.ordered for block in parse_blocks("- a\n1. b\n2. c")] == [False, True]


def test_lists_nest_by_indent():
    assert parse_blocks("- a\n  - b\n    - c\n- d") == [
        ListBlock(
            False,
            1,
            [
                [
                    Paragraph("a"),
                    ListBlock(False, 1, [[Paragraph("b"), ListBlock(False, 1, [[Paragraph("c")]])]]),
                ],
                [Paragraph("d")],
            ],
        )
    ]


def test_an_item_may_have_paragraphs_and_code():
    (block,) = parse_blocks("- a\n\n  b\n\n  ```\n  x\n  ```\n- c")
    assert block.items == [[Paragraph("a"), Paragraph("b"), CodeBlock("x")], [Paragraph("c")]]


def test_items_may_be_separated_by_blank_lines():
    (block,) = parse_blocks("- a\n\n- b\n\n\n- c\n")
    assert block.items == [[Paragraph("a")], [Paragraph("b")], [Paragraph("c")]]


def test_headings_get_different_ids():
    headings = parse_blocks("# Intro\n# Intro\n> # Intro\n# Intro 2")
    assert [headings[0].id, headings[1].id, headings[2].blocks[0].id, headings[3].id] == [
        "intro",
        "intro-2",
        "intro-3",
        "intro-2-2",
    ]


def test_nothing_gives_nothing():
    assert parse_blocks("") == []
    assert to_html("\n \n") == ""

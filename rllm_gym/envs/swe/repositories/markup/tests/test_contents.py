from marktext import Entry, contents, parse_blocks, table_of_contents

PAGE = "# A\n## B\n### C\n## D\n# *E*\n### F\n"


def test_headings_make_a_tree():
    assert table_of_contents(parse_blocks(PAGE)) == [
        Entry("A", "a", 1, [Entry("B", "b", 2, [Entry("C", "c", 3)]), Entry("D", "d", 2)]),
        Entry("E", "e", 1, [Entry("F", "f", 3)]),
    ]


def test_levels_can_be_limited():
    entries = table_of_contents(parse_blocks(PAGE), max_level=2)
    assert [child.title for child in entries[0].children] == ["B", "D"]
    assert entries[1].children == []


def test_a_document_may_begin_deep():
    entries = table_of_contents(parse_blocks("### a\n# b\n"))
    assert [entry.title for entry in entries] == ["a", "b"]


def test_headings_in_quotes_count():
    assert [entry.title for entry in table_of_contents(parse_blocks("> # q\n"))] == ["q"]


def test_the_list_is_nested():
    html = contents.contents_html(table_of_contents(parse_blocks("# A & B\n## C\n")))
    assert html == '<ul><li><a href="#a-b">A &amp; B</a><ul><li><a href="#c">C</a></li></ul></li></ul>'
    assert contents.contents_html([]) == ""

import pytest
from marktext.slugs import Slugs, slugify


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("Hello, World!", "hello-world"),
        ("Crème brûlée", "creme-brulee"),
        ("snake_case", "snake-case"),
        ("  a  --  b  ", "a-b"),
        ("Version 2.0", "version-2-0"),
        ("日本語", "日本語"),
        ("!!!", "section"),
    ],
)
def test_slugs(text, slug):
    assert slugify(text) == slug


def test_a_taken_slug_gets_the_next_free_number():
    slugs = Slugs()
    assert [slugs.unique(text) for text in ("a", "a", "a 2", "a")] == ["a", "a-2", "a-2-2", "a-3"]

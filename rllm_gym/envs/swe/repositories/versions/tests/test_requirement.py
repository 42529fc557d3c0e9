import pytest
from pickver import RangeError, Version, parse_requirement
from pickver.requirement import normalize


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("web ^2.0", "web ^2.0"),
        ("web^2.0", "web ^2.0"),
        ("web", "web *"),
        ("web >=1, <2", "web >=1, <2"),
        ("Web_Kit.core 1.0.0", "web-kit-core 1.0.0"),
        ("web[tls, http2] 1.*", "web[http2,tls] 1.*"),
        ("web[] v1.0.0", "web v1.0.0"),
        ("py3 1.0.0", "py3 1.0.0"),
    ],
)
def test_requirements_are_read(text, shown):
    assert str(parse_requirement(text)) == shown


@pytest.mark.parametrize("text", ["", "1.0.0", "web [tls", "web two", "we b", "web >=x"])
def test_other_text_is_refused(text):
    with pytest.raises(RangeError):
        parse_requirement(text)


def test_any_version_will_do_without_a_range():
    assert Version(0, 0, 1) in parse_requirement("web").range


def test_names():
    assert normalize("A__b.-C") == "a-b-c"

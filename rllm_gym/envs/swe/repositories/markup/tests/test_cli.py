import io

from marktext.cli import main


def test_a_file_is_converted(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("# Grüße\n", encoding="utf-8")
    assert main([str(page)]) == 0
    assert capsys.readouterr().out == '<h1 id="gruße">Grüße</h1>\n'


def test_standard_input_is_the_default(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("*a*"))
    assert main([]) == 0
    assert capsys.readouterr().out == "<p><em>a</em></p>\n"


def test_contents_come_first(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("# A"))
    assert main(["--toc", "-"]) == 0
    assert capsys.readouterr().out == '<ul><li><a href="#a">A</a></li></ul>\n<h1 id="a">A</h1>\n'


def test_a_missing_file_is_an_error_of_one_line(tmp_path, capsys):
    assert main([str(tmp_path / "none.md")]) == 1
    assert capsys.readouterr().err.count("\n") == 1

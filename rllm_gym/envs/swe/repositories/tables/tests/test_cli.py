from tablequery.cli import main


def test_a_table_for_people(orders_file, capsys):
    assert main([str(orders_file), "select city, sum(price) as total group by city order by total desc limit 2"]) == 0
    assert capsys.readouterr().out == "city    total\n------  -----\nLisbon  42.75\nOslo       16\n"


def test_csv(orders_file, capsys):
    assert main(["--csv", str(orders_file), "select order, note where order = 2"]) == 0
    assert capsys.readouterr().out == 'order,note\n2,"late, again"\n'


def test_errors_are_one_line(orders_file, capsys):
    assert main([str(orders_file), "select nothing"]) == 2
    assert main(["no-such-file.csv", "select *"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 2

import pytest

from botorch_bkb.cli.arguments import build_parser


def parse(*words):
    return build_parser().parse_args(words)


def simulate(*words):
    return parse("simulate", "t.csv", "--reward", "gain", *words)


def test_names_of_columns_have_no_blanks_around_them():
    assert simulate("--drop", " x ").drop == ["x"]


@pytest.mark.parametrize("seed", [2**63, 2**64, 10**30, -1, "9" * 5000])
@pytest.mark.parametrize(
    "words", [["demo"], ["suggest", "t.csv"], ["simulate", "t.csv", "--reward", "y"]]
)
def test_seeds_that_no_generator_takes_are_refused(words, seed, capsys):
    with pytest.raises(SystemExit) as error:
        parse(*words, "--seed", str(seed))
    assert error.value.code == 2
    assert "argument --seed: " in capsys.readouterr().err
    assert parse(*words, "--seed", str(2**63 - 1)).seed == 2**63 - 1


def test_separators_have_names():
    for word, separator in [
        ("tab", "\t"),
        ("\\t", "\t"),
        ("semicolon", ";"),
        ("|", "|"),
    ]:
        assert simulate("--separator", word).separator == separator
    assert simulate().separator is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--separator", "a"], "expected one character, or comma, semicolon, tab"),
        (["--separator", ";;"], "expected one character"),
        (["--decimal", ";"], "invalid choice: ';'"),
        (["--horizon", "0"], "expected a whole number, 1 or more"),
        (["--horizon", "x"], "argument --horizon: expected a whole number"),
        (["--noise-std", "-1"], "expected 0 or more"),
        (["--goal", "best"], "invalid choice: 'best'"),
    ],
)
def test_bad_arguments_are_refused(words, message, capsys):
    with pytest.raises(SystemExit) as error:
        simulate(*words)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--reward", "yield", "--reward", "ee"],
        ["--id", "name", "--id", "code"],
        ["--batch-size", "96", "--batch-size", "8"],
        ["--seed", "0", "--seed", "0"],
    ],
)
def test_an_option_that_takes_one_value_is_refused_if_given_twice(words, capsys):
    with pytest.raises(SystemExit):
        parse("suggest", "t.csv", *words)
    error = capsys.readouterr().err
    assert f"argument {words[0]}: expected " in error
    assert all(word in error for word in words[1::2])

import pytest

from botorch_bkb.cli.arguments import build_parser


def simulate(*words):
    return build_parser().parse_args(["simulate", "t.csv", "--reward", "gain", *words])


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("drop", " x ", ["x"]),
        ("seed", str(2**63 - 1), 2**63 - 1),
        ("separator", "tab", "\t"),
        ("separator", "\\t", "\t"),
        ("separator", "semicolon", ";"),
        ("separator", "|", "|"),
        ("cyclic", "a = b = 24", [("a = b", 24.0)]),
    ],
)
def test_values_of_options(name, text, value):
    assert getattr(simulate(f"--{name}", text), name) == value


def test_a_value_may_begin_with_a_minus_sign():
    words = ["suggest", "t.csv", "--bounds", "-100:.5", "--threshold", "-1e-3"]
    args = build_parser().parse_args(words)
    assert args.bounds == [("", -100.0, 0.5)]
    assert args.threshold == -0.001


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--separator", "a"], "expected one character, or comma, semicolon, tab"),
        (["--decimal", ";"], "invalid choice: ';'"),
        (["--horizon", "0"], "expected a whole number, 1 or more"),
        (["--horizon", "x"], "argument --horizon: expected a whole number"),
        (["--noise-std", "-1"], "expected 0 or more"),
        *(
            (["--cyclic", text], "expected COLUMN=PERIOD with a number above 0, such")
            for text in ("hour", "=24", "hour=0", "hour=inf", "hour=day")
        ),
        (["--goal", "best"], "invalid choice: 'best'"),
        (["--seed", "-1"], "argument --seed: expected a whole number from 0"),
        (["--seed", str(2**63)], "argument --seed: expected a whole number from 0"),
        # The first value would be lost.
        (["--batch=4"], "unrecognized arguments: --batch=4"),
        (["--id", "name", "--id", "code"], "expected once, but got both name and code"),
        (["--seed", "0", "--seed", "0"], "expected once, but got both 0 and 0"),
    ],
)
def test_bad_arguments_are_refused(words, message, capsys):
    with pytest.raises(SystemExit) as error:
        simulate(*words)
    assert error.value.code == 2
    assert message in capsys.readouterr().err

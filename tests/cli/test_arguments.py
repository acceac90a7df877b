from math import inf

import pytest

from botorch_bkb.cli.arguments import build_parser


def parsed(*words):
    return build_parser().parse_args(["suggest", "t.csv", *words])


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
        ("bounds", "-100:.5", [("", -100.0, 0.5)]),
        ("bounds", "a=b = 0:", [("a=b", 0.0, inf)]),
        ("component", "acid = a,b=c", [("acid", "a,b=c")]),
        ("threshold", "-1e-3", -0.001),
        ("limit", "ee % ≥ -50.5", [("ee %", ">=", -50.5)]),
        ("limit", "a<b<3", [("a<b", "<=", 3.0)]),
        ("target", "pH=7±0.5", [("pH", 7.0, 0.5)]),
        ("target", "a=b=7", [("a=b", 7.0, 0.0)]),
        ("target", "x = 1e3 +/- 2", [("x", 1000.0, 2.0)]),
    ],
)
def test_values_of_options(name, text, value):
    assert getattr(parsed(f"--{name}", text), name) == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--separator", "a"], "expected one character, or comma, semicolon, tab"),
        (["--decimal", ";"], "invalid choice: ';'"),
        (["--num-bits", "0"], "expected a whole number, 1 or more"),
        (["--num-bits", "x"], "argument --num-bits: expected a whole number"),
        (["--confidence", "-1"], "expected 0 or more"),
        (["--threshold", "inf"], "expected a number, but got 'inf'"),
        *(
            (
                ["--bounds", text],
                f"such as 0:100, yield=0:100, or 0: without an upper "
                f"bound, but got {text!r}",
            )
            for text in ("5", "5:5", "a:b", "y=1")
        ),
        *(
            (["--component", text], f"or NAME=VALUE,VALUE, but got {text!r}")
            for text in ("acid", "acid=", "=a,b")
        ),
        *(
            (["--cyclic", text], "expected COLUMN=PERIOD with a number above 0, such")
            for text in ("hour", "=24", "hour=0", "hour=inf", "hour=day")
        ),
        *(
            (["--objective", text], f"such as yield:max:0:100, but got {text!r}. For a")
            for text in ("yield", "yield:big:0:1", "yield:max:0", "y:max:a:1")
        ),
        (["--objective", "x:a:1"], 'For a target, pass --target "viscosity = 350"'),
        (["--limit", "y = 2"], "such as \"impurity <= 2.5\", but got 'y = 2'"),
        (["--limit", "y <= two"], "expected COLUMN <= NUMBER or COLUMN >= NUMBER"),
        (["--target", "y"], "\"viscosity = 350 +- 10\", but got 'y'"),
        (["--target", "x = 3 +- -1"], "expected COLUMN = NUMBER or COLUMN = NUMBER"),
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
        parsed(*words)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_simulate_keeps_the_flag():
    words = ["simulate", "--minimize", "t.csv", "--reward", "y"]
    args = build_parser().parse_args(words)
    assert (args.minimize, args.table.name) == (True, "t.csv")

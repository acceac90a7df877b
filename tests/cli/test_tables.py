import re

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError

from botorch_bkb.arms import ParquetArms
from botorch_bkb.cli.features import feature_table
from botorch_bkb.tables.columns import read_table
from botorch_bkb.tables.files import parquet_columns, write_table


@pytest.fixture
def table():
    return pd.DataFrame(
        {
            "size": [1, 2, 3],
            "sex": ["M", "F", "M"],
            "ripe": [True, False, False],
            "gain": [0.1, 0.2, 0.3],
        }
    )


def read(path, *text_columns):
    return read_table(path, text_columns).frame


def written(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "folder/t.parquet", "T.CSV"])
def test_a_table_survives_writing_and_reading(table, tmp_path, name):
    write_table(table, tmp_path / name)
    found = read(tmp_path / name).reset_index(drop=True)
    pd.testing.assert_frame_equal(found, table, check_dtype=False)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_text_columns_keep_their_text(tmp_path, name):
    write_table(pd.DataFrame({"id": ["007", " 7 ", None], "x": 1}), tmp_path / name)
    ids = read(tmp_path / name, "id", "absent")["id"]
    assert ids.head(2).tolist() == ["007", "7"]
    assert ids.isna().tolist() == [False, False, True]


def test_the_separator_is_that_of_the_header(tmp_path):
    """Not of the rows, which may have text and decimals with commas."""
    for header, row, names in [
        ("id;heat, C", "a;1,5", ["id", "heat, C"]),
        ('id,"heat; low, C",x', "a,1.5,2", ["id", "heat; low, C", "x"]),
        ('id\t"heat\nC"', "a\t1.5", ["id", "heat\nC"]),
        ("id", '"a, b; c"', ["id"]),
    ]:
        found = read(written(tmp_path / "t.csv", f"{header}\n{row}\n{row}\n"))
        assert list(found) == names
        if len(names) > 1:
            assert found.iloc[0, 1] == 1.5


def test_the_other_columns_tell_the_mark_of_a_column_of_thousands(tmp_path):
    path = tmp_path / "t.csv"
    assert read(written(path, "a;b\n1,234;0,5\n"))["a"].tolist() == [1.234]
    assert read(written(path, "a;b\n1.234;0.5\n"))["a"].tolist() == [1.234]
    assert read(written(path, "a;b\n1.234;0,5\n"))["a"].tolist() == ["1.234"]
    found = read_table(written(path, "a;b\n1,5;0.5\n"))
    assert found.frame.to_numpy().tolist() == [[1.5, 0.5]]
    assert "'a' of text is read as numbers, such as '1,5' as 1.5" in found.notes[1]
    with pytest.raises(InputDataError, match=r"1,234 in column 'a', row 2 .*--decimal"):
        read(written(path, "a;b\n1,234;5\n"))
    assert read_table(path, decimal=",").frame["a"].tolist() == [1.234]


@pytest.mark.parametrize("text", ["1_0", "0x1A", "1.5f", "\uff11", "1,5,1"])
def test_only_numbers_are_read_as_numbers(tmp_path, text):
    found = read(written(tmp_path / "t.csv", f'a;b\n2;"{text}"\n'))
    assert found["b"].tolist() == [text]


def test_numbers_are_those_that_are_written(tmp_path):
    texts = ["0.1", "+1.5", "-.5", "1.", "1E+05", "2.5e-3", "0.30000000000000004"]
    found = read(written(tmp_path / "t.csv", "a\n" + "\n".join(texts)))
    assert found["a"].tolist() == [float(text) for text in texts]


def test_bytes_of_latin_1_may_come_late(tmp_path):
    path = written(tmp_path / "t.csv", b"a\n" + b"b\n" * 70_000 + b"s\xe4ure\n")
    table = read_table(path)
    assert table.frame["a"].iloc[-1] == "säure"
    assert table.form.encoding == "cp1252"


WORDS = {
    "gbk": "\u7532\u9187",
    "big5": "\u529f\u80fd\u57fa",
    "shift_jis": "\u30dd\u30ea",  # its second byte is a bar
    "cp1251": "\u043c\u0435\u0442\u0430\u043d\u043e\u043b",
    "euc_kr": "\uba54\ud0c4\uc62c",
}


@pytest.mark.parametrize("encoding", WORDS)
def test_an_encoding_is_named(tmp_path, encoding):
    """It is that of files which are not Unicode."""
    word = WORDS[encoding]
    text = f"id,{word}\na,{word} 1\n"
    path = written(tmp_path / "t.csv", text.encode(encoding))
    with pytest.raises(InputDataError, match=r"As cp1252 it has the letters .* --enc"):
        read(path)
    found = read_table(path, encoding=encoding)
    assert found.form.encoding == encoding
    for code in "utf-8", "utf-8-sig", "utf-16":
        written(path, text.encode(code))
        other = read_table(path, encoding=encoding)
        pd.testing.assert_frame_equal(other.frame, found.frame)
    assert found.frame[word].tolist() == [f"{word} 1"]


def test_columns_of_bits_take_a_byte_per_cell(tmp_path):
    """Other numbers stay what is written."""
    columns = {"bit": [0, 1, 255], "more": [0, 1, 256], "below": [0, 1, -1]}
    path = tmp_path / "t.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    found = read(path)
    assert found.to_dict("list") == columns
    assert found["bit"].dtype == "uint8"


def notes(capsys):
    return capsys.readouterr().out.splitlines()


def test_numeric_columns_are_features_and_words_are_categories(table, capsys):
    features = feature_table(table.drop(columns="gain").assign(batch=3, lot="a"))
    assert features.to_dict("list") == {
        "size": [1.0, 2.0, 3.0],
        "sex": ["M", "F", "M"],
        "ripe": [1.0, 0.0, 0.0],
    }
    assert notes(capsys) == [
        "Note: column 'sex' has 2 words, compared as categories: M (2), F (1).",
        "Note: column 'batch' is constant and was dropped.",
        "Note: column 'lot' is constant and was dropped.",
    ]


def test_twenty_words_are_categories_and_more_are_refused():
    def lettered(num_values):
        return pd.DataFrame({"name": [f"n{i}" for i in range(num_values)]})

    assert feature_table(lettered(20)).equals(lettered(20).astype("str"))
    match = r"21 different.*--id name.*--category name.*--drop name"
    with pytest.raises(InputDataError, match=match):
        feature_table(lettered(21))


def test_a_category_that_is_named_may_have_many_values(capsys):
    wells = pd.DataFrame({"well": np.arange(60) % 30, "heat": np.arange(60) // 30})
    features = feature_table(wells, categories=["well"])
    assert features["well"].tolist() == [str(n % 30) for n in range(60)]
    (note,) = notes(capsys)
    assert "column 'well' has 30 words, compared as categories: 0 (2), 1 (2)" in note
    assert note.endswith(" 19 (2) and 10 more.")


LIKE_NUMBERS = ["30 C", "0.5mg/mL", "1,100", "1 100", "1:10", "0.5-5.5", "5 %ee"]


@pytest.mark.parametrize(
    "text", [*LIKE_NUMBERS, "31.01.2026", "01/31/2026", "01-Jan-26", "3 Feb 2026"]
)
def test_text_that_looks_like_a_number_or_a_date_is_refused(text):
    match = r"'load' has .* in row 1 .* looks like a number or a date\. Write bare numb"
    with pytest.raises(InputDataError, match=match):
        feature_table(pd.DataFrame({"load": [text, text]}, dtype="str"))


@pytest.mark.parametrize("text", ["<0.1", "10%", "30,5", "#DIV/0!", "30 C", "\x1e2.87"])
def test_text_among_numbers_is_refused(text):
    match = rf"{re.escape(repr(text))} in row 2 .*stands among numbers.*--drop load"
    with pytest.raises(InputDataError, match=match):
        feature_table(pd.DataFrame({"load": ["5", text]}, dtype="str"))


def test_names_may_begin_with_digits():
    names = pd.DataFrame({"solvent": ["2-propanol", "A4", "4-nitrophenol"]})
    assert feature_table(names)["solvent"].tolist() == names["solvent"].tolist()


@pytest.mark.parametrize("sign", [1, -1])
def test_a_value_that_leaves_the_others_no_room_is_named(sign, capsys):
    values = sign * np.random.default_rng(0).uniform(20, 90, size=300)
    table = pd.DataFrame({"id": range(300), "heat": values, "acid": np.arange(300.0)})
    feature_table(table.drop(columns="id"))
    assert notes(capsys) == []
    table.loc[17, "heat"] = sign * 1e6
    feature_table(table.drop(columns="id"))
    (note,) = notes(capsys)
    assert "nearly all of its 300 values are near" in note
    assert f"Correct {sign * 1e6:g} in row 18 (the header" in note


COLUMNS = {
    "few": [1.0, 2, 3, 4, 5, 1e6],
    "rare": np.arange(300) == 7,
    "two kinds": np.where(np.arange(300) < 20, 1e6, np.arange(300) % 9),
    "long tail": np.exp(np.linspace(0, 4, 300)),
    "counts": np.bincount(np.arange(300) // 60, minlength=300),
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_columns_that_say_something_are_not_named(column, capsys):
    table = pd.DataFrame({"x": column, "other": np.arange(float(len(column)))})
    feature_table(table)
    assert notes(capsys) == []


@pytest.mark.parametrize("columns", [None, ["sex"]])
def test_what_pandas_keeps_as_the_index_is_a_column_if_it_has_a_name(
    table, tmp_path, columns
):
    named, unnamed = tmp_path / "named.parquet", tmp_path / "unnamed.parquet"
    table.set_index("sex").to_parquet(named)
    table[::2].to_parquet(unnamed)
    assert parquet_columns(named) == ["size", "ripe", "gain", "sex"]
    assert parquet_columns(unnamed) == [*table]
    for path, own in ((named, table), (unnamed, table[::2])):
        found = read_table(path, columns=columns).frame.reset_index(drop=True)
        own = own.reset_index(drop=True)[columns or [*own]]
        pd.testing.assert_frame_equal(found, own, check_dtype=False, check_like=True)
    numbers = table.drop(columns=["sex", "ripe"])[::2]
    numbers.to_parquet(unnamed)
    assert ParquetArms(unnamed).equal(torch.tensor(numbers.to_numpy("float64")))

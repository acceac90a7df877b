import pandas as pd
import pytest

from botorch_bkb.test_functions import load_abalone, load_cadata


@pytest.fixture
def abalone(tmp_path):
    path = tmp_path / "abalone.csv"
    path.write_text("sex,length,rings\nM,0.4,9\nI,0.2,5\nF,0.5,11\n")
    return path


def test_abalone_codes_sex_as_one_number(abalone):
    table = load_abalone(abalone)
    assert table["sex"].tolist() == [1, 0, -1]
    assert table["rings"].tolist() == [9, 5, 11]


def test_the_folder_comes_from_the_environment(abalone, monkeypatch):
    monkeypatch.setenv("BOTORCH_BKB_DATA", str(abalone.parent))
    frame = pd.DataFrame({"longitude": [1.0, 2.0], "median_house_value": [3, 4]})
    frame.to_csv(abalone.parent / "cadata.csv.gz", index=False)
    assert len(load_abalone()) == 3
    pd.testing.assert_frame_equal(load_cadata(), frame)


def test_a_missing_file_names_the_argument_and_the_variable(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"none\.csv.*`path`.*BOTORCH_BKB_DATA"):
        load_abalone(tmp_path / "none.csv")
    monkeypatch.setenv("BOTORCH_BKB_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"cadata\.csv\.gz.*`path`"):
        load_cadata()

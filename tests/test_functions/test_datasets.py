import pandas as pd
import pytest

from botorch_bkb.test_functions import (
    load_abalone,
    load_cadata,
    load_intel_temperature,
    load_traffic_speed,
)


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


def test_temperatures_are_read_from_a_file(tmp_path, monkeypatch):
    path = tmp_path / "intel_temperature.csv.gz"
    pd.DataFrame(
        {"day": [1, 1], "hour": [0.5, 1.0], "3": [20.1, 20.2], "7": [19.0, 18.0]}
    ).to_csv(path, index=False)
    monkeypatch.setenv("BOTORCH_BKB_DATA", str(tmp_path))
    for table in (load_intel_temperature(), load_intel_temperature(path)):
        assert table.columns.tolist() == ["3", "7"]
        assert table.loc[(1, 1.0), "7"] == 18.0
        assert table.index.names == ["day", "hour"]


def test_speeds_are_those_of_stations_that_report(tmp_path):
    speeds, stations = tmp_path / "speeds.csv", tmp_path / "stations.csv"
    times = ["2024-01-01T06:00", "2024-01-01T06:05", "2024-01-02T06:00"]
    pd.DataFrame(
        {"timestamp": times, "11": [60.0, 61.0, 62.0], "12": [50.0, 51.0, 52.0]}
    ).to_csv(speeds, index=False)
    pd.DataFrame({"station": [11, 12], "pct_observed": [74.9, 75.0]}).to_csv(
        stations, index=False
    )
    table = load_traffic_speed(speeds, stations)
    assert table.columns.tolist() == ["12"]
    assert table.index.get_level_values("slot").tolist() == [0, 1, 0]
    assert len(table.groupby(level="day")) == 2
    everyone = load_traffic_speed(speeds, stations, min_observed=0.0)
    assert everyone.columns.tolist() == ["11", "12"]

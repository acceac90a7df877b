"""Loaders of the tabular data sets of the BKB, BBKB and TV-GP-UCB papers.

The files are not part of the package. Name one by argument, or name the folder that
holds them by the environment variable ``BOTORCH_BKB_DATA``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import pandas as pd

DATA_VARIABLE = "BOTORCH_BKB_DATA"
ABALONE_SEX_CODES = {"M": 1, "I": 0, "F": -1}


def load_abalone(path: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """Load Abalone: 4,177 molluscs, 8 features, the reward column ``rings``.

    The papers count eight features, so ``sex`` is one number: M = 1, I = 0, F = -1.
    ``path`` and errors are those of :func:`load_cadata`, for ``abalone.csv``.
    """
    table = _read_csv(path, "abalone.csv")
    return table.assign(sex=table["sex"].map(ABALONE_SEX_CODES))


def load_cadata(path: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """Load Cadata: 20,640 blocks, 8 features, the reward ``median_house_value``.

    Args:
        path: The CSV file; None for ``cadata.csv.gz`` in the folder that the
            environment variable ``BOTORCH_BKB_DATA`` names.

    Raises:
        FileNotFoundError: If there is no such file.
        ImportError: If pandas is not installed.
    """
    return _read_csv(path, "cadata.csv.gz")


def load_intel_temperature(path: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """Load the Intel lab's temperatures: 240 half hours of 5 days, 50 sensors.

    The TV-GP-UCB paper has 46 sensors at 10 minutes. ``path`` and errors are those of
    :func:`load_cadata`, for ``intel_temperature.csv.gz``.

    Returns:
        A table in degrees Celsius with a column per sensor, indexed by day and hour.
    """
    return _read_csv(path, "intel_temperature.csv.gz").set_index(["day", "hour"])


def load_traffic_speed(
    path: str | os.PathLike[str] | None = None,
    stations_path: str | os.PathLike[str] | None = None,
    min_observed: float = 75.0,
) -> pd.DataFrame:
    """Load speeds on freeways of San Diego: 14 mornings of 60 slots of 5 minutes.

    The TV-GP-UCB paper has another freeway and a month. Errors are those of
    :func:`load_cadata`.

    Args:
        path: The CSV file of speeds; None for ``traffic_speed.csv.gz`` in the folder
            that the environment variable ``BOTORCH_BKB_DATA`` names.
        stations_path: That of the stations; None for ``traffic_stations.csv``.
        min_observed: The percentage of readings that must have been measured; PeMS
            makes up those of stations that do not report.

    Returns:
        A table in miles per hour with a column per station that is left, indexed by
        ``day``, a date, and ``slot``, from 0 on.
    """
    import pandas as pd

    table = _read_csv(path, "traffic_speed.csv.gz")
    stations = _read_csv(stations_path, "traffic_stations.csv")
    time = pd.to_datetime(table.pop("timestamp"))
    day = time.dt.date.rename("day")
    slot = day.groupby(day).cumcount().rename("slot")
    measured = stations.loc[stations["pct_observed"] >= min_observed, "station"]
    return table[measured.astype(str).tolist()].set_index([day, slot])


def _read_csv(path: str | os.PathLike[str] | None, file_name: str) -> pd.DataFrame:
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(
            "Reading a data set needs pandas, which is not installed. Install it with "
            'pip install "botorch_bkb[cli]".'
        ) from error
    file = Path(os.environ.get(DATA_VARIABLE, ""), file_name) if path is None else path
    if not Path(file).is_file():
        raise FileNotFoundError(
            f"Expected a file at {file}, but there is none. Pass the file as `path`, "
            f"or set the environment variable {DATA_VARIABLE} to the folder that "
            f"holds {file_name}."
        )
    return pd.read_csv(file)

"""The page "Practice" says what the rows of its benchmark say."""

import csv
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import practice
from benchmarks.practice import Run
from benchmarks.practice_page import draw_shares, fixed, shares_found, write_page
from benchmarks.practice_rows import RowFile
from tests.test_benchmarks import options
from tests.test_benchmarks_practice import rows_of
from tests.test_figures_page import is_a_rounding, numbers_of


ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "practice.rst").read_text()
CHECKPOINTS = {"batches": (100,), "plates": (192, 480)}


def run_page():
    args = options(practice, "--page")
    args.output = None  # nothing but the page is written
    practice.run(args)


# --- of made-up rows


@pytest.fixture(scope="module")
def rows():
    """Four methods on a pool of each part, two seeds, and a plate of one seed."""
    parts = []
    for pool, more in (("levy4", 0), ("hplc", 1)):
        for seed in (0, 1):
            for method, found, regrets in (
                ("BBKB", [0, 3, 6 + more + seed], [9.0, 20.0, 30.0 + more]),
                ("uniform", [0, 1, 1], [9.0, 40.0, 80.0]),
                ("Thompson", [0, 2, 5 - seed], [9.0, 30.0, 40.0]),
                ("a peer of late", [0, 2, 2], [9.0, 45.0, 90.0]),
            ):
                commit = "0123456" if method == "BBKB" else f"12e{seed}567"
                one = rows_of(method, seed, found, regrets, pool=pool)
                parts.append(one.assign(commit=commit))
    plate = parts[0].assign(protocol="plates", noise=0.0, num_measured=[96, 192, 480])
    return pd.concat([*parts, plate], ignore_index=True)


def texts_of(rows, folder):
    write_page(rows, CHECKPOINTS, folder, ours=("BBKB", "GPBUCB"))
    assert (folder / "practice.png").read_bytes().startswith(b"\x89PNG")
    return {path.name: path.read_text() for path in folder.glob("*.csv")}


def test_its_tables_say_what_rows_say(rows, tmp_path):
    texts = texts_of(rows, tmp_path)
    assert {name: text.splitlines() for name, text in texts.items()} == {
        "runs.csv": [
            "protocol,noise,part,whose,pools,methods,seeds,commits",
            "batches,5 %,choosing,ours,1,1,2,0123456",
            "batches,5 %,choosing,peers,1,3,2,12e0567 12e1567",
            "batches,5 %,held-out,ours,1,1,2,0123456",
            "batches,5 %,held-out,peers,1,3,2,12e0567 12e1567",
            "plates,0 %,held-out,ours,1,1,1,0123456",
        ],
        # 7.5 and 6.5 over 4.5.
        "ratios.csv": [
            "protocol,measurements,noise,part,method,pools,seeds,"
            "to the best stock method,least,in,to the choice,to stock Thompson,"
            "regret over stock Thompson's",
            "batches,100,5 %,choosing,BBKB,1,2,1.67,1.67,hplc,1.67,1.67,0.000",
            "batches,100,5 %,held-out,BBKB,1,2,1.44,1.44,levy4,1.44,1.44,0.000",
            "batches,100,5 %,all,BBKB,2,2,1.56,1.44,levy4,1.56,1.56,0.000",
        ],
        "found.csv": [
            "pool,part,best 1 %,seeds,uniform,Thompson,BBKB,a peer of late",
            "hplc,choosing,10,2,1.0 +- 0.0,4.5 +- 0.5,7.5 +- 0.5,2.0 +- 0.0",
            "levy4,held-out,10,2,1.0 +- 0.0,4.5 +- 0.5,6.5 +- 0.5,2.0 +- 0.0",
        ],
        # 31 and 30 over the 40 of Thompson sampling.
        "regret.csv": [
            "noise,measurements,part,method,pools,mean ratio,largest,pools below 1",
            "5 %,100,choosing,BBKB,1,0.78,0.78,1",
            "5 %,100,held-out,BBKB,1,0.75,0.75,1",
        ],
    }


def test_who_collects_reward_is_held_against_every_peer_by_every_policy(tmp_path):
    parts = []
    for pool, regrets in (("levy4", [9.0, 20.0, 30.0]), ("hplc", [9.0, 30.0, 60.0])):
        parts += [
            rows_of("BBKB, regret", 0, [0, 3, 6], regrets, pool=pool),
            rows_of("uniform", 0, [0, 1, 1], [9.0, 40.0, 90.0], pool=pool),
            rows_of("Thompson", 0, [0, 2, 5], [9.0, 30.0, 50.0], pool=pool),
        ]
    table = pd.concat(parts, ignore_index=True).assign(commit="0123456")
    write_page(table, CHECKPOINTS, tmp_path, ours=("BBKB, regret",))
    # Who stops at 50 has a regret of one deviation fifty times after that.
    assert (tmp_path / "regret_by_peer.csv").read_text().splitlines() == [
        "noise,measurements,peer,policy,pools,mean ratio,largest,pools below 1",
        "5 %,100,uniform,as played,2,0.50,0.67,2",
        "5 %,100,uniform,stops at 50,2,0.50,0.67,2",
        "5 %,100,Thompson,as played,2,0.90,1.20,1",
        "5 %,100,Thompson,stops at 50,2,0.56,0.75,2",
    ]


def test_the_order_of_rows_does_not_matter(rows, tmp_path):
    mixed = rows.sample(frac=1, random_state=0)
    again = texts_of(mixed, tmp_path / "mixed")
    assert again == texts_of(rows, tmp_path / "as_played")


def test_a_seed_more_of_one_method_is_said(rows, tmp_path):
    more = rows[(rows["method"] == "uniform") & (rows["seed"] == 0)].assign(seed=2)
    texts = texts_of(pd.concat([rows, more]), tmp_path)
    assert ",10,2 to 3,1.0 +- 0.0," in texts["found.csv"]
    assert ",peers,1,3,2 to 3," in texts["runs.csv"]


@pytest.mark.parametrize("method", ["BBKB", "uniform"])
def test_what_there_are_no_rows_of_is_left_out(method, rows, tmp_path):
    only = rows[(rows["method"] == method) & (rows["protocol"] == "batches")]
    assert set(texts_of(only, tmp_path / "found")) == {"runs.csv", "found.csv"}
    plates = only.assign(protocol="plates")
    assert set(texts_of(plates, tmp_path / "plates")) == {"runs.csv"}


def test_one_seed_has_no_error_and_no_choice(rows, tmp_path):
    texts = texts_of(rows[rows["seed"] == 0], tmp_path)
    assert "hplc,choosing,10,1,1.0,5.0,7.0,2.0\n" in texts["found.csv"]
    assert "choosing,BBKB,1,1,1.40,1.40,hplc,,1.40,0.000\n" in texts["ratios.csv"]
    assert "5 %,100,choosing,BBKB,1,0.78,0.78,1\n" in texts["regret.csv"]


def test_plates_are_compared_at_every_checkpoint(rows, tmp_path):
    batches = rows[rows["protocol"] == "batches"]
    measured = batches["num_measured"].map({10: 96, 50: 192, 100: 480})
    plates = batches.assign(protocol="plates", num_measured=measured)
    lines = texts_of(plates, tmp_path)["ratios.csv"].splitlines()
    assert [line.rsplit(",", 6)[0] for line in lines[1:]] == [
        f"plates,{end},5 %,{part},BBKB,{pools},2"
        for end in (192, 480)
        for part, pools in (("choosing", 1), ("held-out", 1), ("all", 2))
    ]
    assert [line.split(",")[7] for line in lines[1:]] == [
        *("1.50", "1.50", "1.50"),
        *("1.67", "1.44", "1.56"),
    ]


def test_what_is_printed_does_not_rest_on_last_bits():
    tie = np.nextafter([0.125, 0.125, 2.675, 2.675], [0, 1, 0, 3])
    low, high, *others = map(fixed(2), tie)
    assert low == high
    assert others[0] == others[1]
    assert fixed(3)(-1e-17) == fixed(3)(-4e-4) == "0.000"
    assert fixed(1)(float("nan")) == ""


def test_shares_are_of_the_pools_that_all_have_and_the_short_ones_stay(rows):
    batches = rows[rows["protocol"] == "batches"]
    # Ours ends at 90 on the pool hplc, as a pool of 90 candidates does.
    is_short = batches["pool"] == "hplc"
    short = batches["num_measured"].where(
        ~is_short | (batches["num_measured"] < 100), 90
    )
    other = rows_of("uniform", 0, [0, 9, 9], [1.0, 2.0, 3.0], pool="no other method")
    table = pd.concat([batches.assign(num_measured=short), other])
    shares, num_pools = shares_found(table)
    assert num_pools == 2
    ours = shares[shares["method"] == "BBKB"]
    assert ours["num_measured"].tolist() == [10, 50, 100]
    # Of 10: 6.5 and 7.5, each with an error of a half.
    assert ours["share"].tolist() == pytest.approx([0, 0.3, 0.7])
    assert ours["error"].tolist() == pytest.approx([0, 0, 0.05 / 2**0.5])
    none = pd.concat([batches[is_short & (batches["method"] == "BBKB")], other])
    shares, num_pools = shares_found(none)
    assert shares.empty
    assert num_pools == 0


def test_the_picture_has_a_panel_a_protocol_and_noise(rows):
    noisy = rows[rows["protocol"] == "batches"].assign(noise=0.5)
    other = rows_of("BBKB", 0, [0, 1, 1], [1.0, 2.0, 3.0], pool="a", noise=0.9)
    late = rows_of("uniform", 0, [0, 1, 1], [1.0, 2.0, 3.0], pool="b", noise=0.9)
    is_plate = rows["protocol"] == "plates"
    table = pd.concat([rows[~is_plate], noisy, other, late, rows[is_plate]])
    figure = draw_shares(table, ["uniform", "Thompson", "BBKB", "a peer of late"])
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == [
        "batches, noise 5 %, 2 pools",
        "batches, noise 50 %, 2 pools",
        "batches, noise 90 %, 0 pools",
        "plates, noise 0 %, 1 pool",
    ]
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["uniform", "Thompson", "BBKB", "a peer of late"]
    styles = {line.get_label(): line.get_linestyle() for line in panels[0].lines}
    assert (styles["uniform"], styles["BBKB"]) == ("--", "-")
    (line,) = panels[3].lines
    assert line.get_xdata().tolist() == [96, 192, 480]
    assert line.get_ydata().tolist() == pytest.approx([0, 0.3, 0.6])


def test_every_panel_shows_all_of_its_lines(rows):
    """The limits were set with the first panel, and cut off what later ones found."""
    batches = rows[rows["protocol"] == "batches"]
    more = batches.assign(protocol="plates", found=10)
    figure = draw_shares(pd.concat([batches, more]), list(batches["method"].unique()))
    for axes in figure.axes:
        bottom, top = axes.get_ylim()
        assert bottom == 0
        assert top >= 1


def test_without_rows_the_page_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(practice, "ROWS", tmp_path / "rows.csv.gz")
    monkeypatch.setattr(practice, "PAGE", tmp_path / "page")
    with pytest.raises(SystemExit, match=r"but \S+rows.csv.gz has none"):
        run_page()
    assert list(tmp_path.iterdir()) == []


def test_the_command_makes_the_page_of_the_rows_kept(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(practice, "ROWS", tmp_path / "rows.csv.gz")
    monkeypatch.setattr(practice, "PAGE", tmp_path / "page")
    RowFile(practice.ROWS, Run._fields).append(rows)
    run_page()
    texts = {path.name: path.read_text() for path in practice.PAGE.glob("*.csv")}
    assert texts == texts_of(rows, tmp_path / "again")


# --- of the rows in the repository


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The tables of the page, made anew from the rows."""
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(practice, "PAGE", folder)
        run_page()
    return {path.name: path.read_text() for path in folder.glob("*.csv")}


def test_its_tables_are_made_of_the_rows(tables):
    shown = re.findall(r":file: practice/(\S+)", PAGE)
    assert sorted(shown) == sorted(tables)
    for name, text in tables.items():
        assert (practice.PAGE / name).read_text() == text, name


def test_its_picture_is_there():
    shown = re.findall(r"image:: practice/(\S+)", PAGE)
    assert shown == [path.name for path in practice.PAGE.glob("*.png")]


def test_what_it_says_of_ours_are_numbers_of_its_tables(tables):
    rows = [row for text in tables.values() for row in csv.reader(text.splitlines())]
    cells = {float(x) for row in rows for cell in row for x in numbers_of(cell)}
    for ours in re.findall(r"\*\*Ours\.\*\*(.+?)\n\n", PAGE, re.DOTALL):
        for number in numbers_of(ours):
            assert is_a_rounding(number, cells), f"{number}\n{ours}"


def test_nothing_is_left_to_be_said():
    assert "TODO-NUMBERS" not in PAGE


def test_rows_are_traced_and_small():
    table = RowFile(practice.ROWS, Run._fields).table()
    assert len(table) > 0
    assert practice.ROWS.stat().st_size < 5e6
    traces = ["commit", "torch", "botorch", "threads", "device"]
    assert table[traces].notna().all(axis=None)
    assert not table["commit"].str.contains("dirty|unknown").any()
    assert not set(table["protocol"]) - set(practice.PROTOCOLS)

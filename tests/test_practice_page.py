"""The tables of the page "Practice": from made-up rows, and from the rows kept."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import practice, practice_box
from benchmarks.practice_tables import draw_shares, fixed, shares_found, write_tables
from benchmarks.rows import RowFile
from tests.test_benchmarks import options


DOCS = Path(__file__).parent.parent / "docs"
CHECKPOINTS = {"batches": (100,), "plates": (192, 480)}


def rows_of(method, seed, found, regrets, *, pool="ten", noise=0.05):
    """Make up the rows of a run by ``found`` and cumulative regret at 10, 50, 100."""
    return pd.DataFrame(
        {
            "pool": pool,
            "protocol": "batches",
            "noise": noise,
            "method": method,
            "seed": seed,
            "num_measured": [10, 50, 100],
            "found": found,
            "num_best": 10,
            "simple_regret": [2.0, 1.0, 0.5],
            "cumulative_regret": regrets,
            "distinct": [10, 40, 60],
            "asks": [0, 4, 2],
            "seconds": [9.0, 8.0, 1.0],
            "rows": 3,
        }
    )


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
    write_tables(rows, CHECKPOINTS, folder, ("BBKB", "GPBUCB"))
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
            "protocol,measurements,noise,part,method,pools,seeds,to best stock,least,"
            "in,to stock Thompson,regret over stock Thompson",
            "batches,100,5 %,choosing,BBKB,1,2,1.67,1.67,hplc,1.67,0.000",
            "batches,100,5 %,held-out,BBKB,1,2,1.44,1.44,levy4,1.44,0.000",
            "batches,100,5 %,all,BBKB,2,2,1.56,1.44,levy4,1.56,0.000",
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


def test_ratios_are_to_the_best_peer_on_the_seeds_of_both(tmp_path):
    table = pd.concat(
        [
            rows_of("qLogEI", 0, [0, 2, 5], [9.0, 30.0, 40.0]),
            rows_of("qLogEI", 1, [0, 4, 3], [9.0, 30.0, 40.0]),
            rows_of("Thompson", 0, [0, 4, 8], [9.0, 20.0, 30.0]),
            rows_of("BBKB", 0, [0, 3, 6], [9.0, 20.0, 30.0]),
            rows_of("BBKB", 1, [0, 5, 6], [9.0, 22.0, 34.0]),
        ]
    ).assign(commit="0123456")
    lines = texts_of(table, tmp_path)["ratios.csv"].splitlines()
    # 6 over 8 on the first seed; over qLogEI it is 12 over 8 on both.
    assert lines[1:] == ["batches,100,5 %,other,BBKB,1,1,0.75,0.75,ten,0.75,0.000"]


def test_the_order_of_rows_does_not_matter(rows, tmp_path):
    mixed = rows.sample(frac=1, random_state=0)
    again = texts_of(mixed, tmp_path / "mixed")
    assert again == texts_of(rows, tmp_path / "as_played")


def test_a_seed_more_of_one_method_is_said(rows, tmp_path):
    more = rows[(rows["method"] == "uniform") & (rows["seed"] == 0)].assign(seed=2)
    texts = texts_of(pd.concat([rows, more]), tmp_path)
    assert ",10,2 to 3,1.0 +- 0.0," in texts["found.csv"]
    assert ",peers,1,3,2 to 3," in texts["runs.csv"]


def test_one_seed_has_no_error(rows, tmp_path):
    texts = texts_of(rows[rows["seed"] == 0], tmp_path)
    assert "hplc,choosing,10,1,1.0,5.0,7.0,2.0\n" in texts["found.csv"]
    assert "choosing,BBKB,1,1,1.40,1.40,hplc,1.40,0.000\n" in texts["ratios.csv"]
    assert "5 %,100,choosing,BBKB,1,0.78,0.78,1\n" in texts["regret.csv"]


def test_plates_are_compared_at_every_checkpoint(rows, tmp_path):
    batches = rows[rows["protocol"] == "batches"]
    measured = batches["num_measured"].map({10: 96, 50: 192, 100: 480})
    plates = batches.assign(protocol="plates", num_measured=measured)
    lines = texts_of(plates, tmp_path)["ratios.csv"].splitlines()
    assert [line.rsplit(",", 5)[0] for line in lines[1:]] == [
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
    figure = draw_shares(table)
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
    # BBKB, Thompson, a peer that no color is known of, uniform.
    assert [line.get_linestyle() for line in panels[0].lines] == ["-", "--", "-", "--"]
    (line,) = panels[3].lines
    assert line.get_xdata().tolist() == [96, 192, 480]
    assert line.get_ydata().tolist() == pytest.approx([0, 0.3, 0.6])


def test_every_panel_shows_all_of_its_lines(rows):
    """The limits were set with the first panel, and cut off what later ones found."""
    batches = rows[rows["protocol"] == "batches"]
    more = batches.assign(protocol="plates", found=10)
    figure = draw_shares(pd.concat([batches, more]))
    for axes in figure.axes:
        bottom, top = axes.get_ylim()
        assert bottom == 0
        assert top >= 1


# --- of the rows in the repository


def test_its_tables_are_made_of_the_rows(tmp_path, monkeypatch):
    kept = practice.PAGE
    monkeypatch.setattr(practice, "PAGE", tmp_path)
    practice.run(options(practice, "--page"), None)
    page = (DOCS / "practice.rst").read_text()
    shown = re.findall(r"(?::file:|image::) practice/(\S+)", page)
    for folder in (kept, tmp_path):
        assert sorted(path.name for path in folder.iterdir()) == sorted(shown)
    for name in (name for name in shown if name.endswith(".csv")):
        assert (kept / name).read_text() == (tmp_path / name).read_text(), name


def test_the_table_of_boxes_is_made_of_the_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(practice_box, "PAGE", tmp_path)
    practice_box.run(options(practice_box, "--page"), None)
    made = (tmp_path / "practice_box.csv").read_text()
    assert (DOCS / "practice_box.csv").read_text() == made


@pytest.mark.parametrize("module", [practice, practice_box], ids=lambda m: m.__name__)
def test_rows_are_traced_and_small(module):
    table = RowFile(module.ROWS, module.Run._fields).table()
    assert len(table) > 0
    assert module.ROWS.stat().st_size < 5e6
    traces = ["commit", "torch", "botorch", "threads", "device"]
    assert table[traces].notna().all(axis=None)
    assert not table["commit"].str.contains("dirty|unknown").any()

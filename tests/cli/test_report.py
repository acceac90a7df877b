import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import ScaleKernel
from typing_extensions import override

from botorch_bkb.__main__ import main
from botorch_bkb.bandits import GPBandit
from botorch_bkb.cli import diagnosis, report
from botorch_bkb.cli.arguments import SuggestOptions
from botorch_bkb.cli.features import Features
from botorch_bkb.cli.report import describe_kernel, nearest_measured, read_rounds
from botorch_bkb.cli.results import told_table
from botorch_bkb.cli.tables import in_digits_of
from botorch_bkb.integrations.chem import draw_molecules
from botorch_bkb.models.kernels import TanimotoKernel
from botorch_bkb.tables.files import Table
from tests.helpers import learned_parts
from tests.reference import composite_covariance


NUM_ARMS = 40


class Parsed(HTMLParser):
    """What a page holds, by its text alone."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(path.read_text(encoding="utf-8"))

    @override
    def handle_starttag(self, name, attributes):
        self.tags.append((name, dict(attributes)))

    @override
    def handle_data(self, data):
        self.texts.append(data)

    def all(self, name):
        return [attributes for found, attributes in self.tags if found == name]

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    arms = pd.DataFrame(
        {
            "id": [f'<script>alert("{number}")</script>' for number in range(NUM_ARMS)],
            "heat <img src=http://localhost/x>": rng.uniform(20, 90, size=NUM_ARMS),
            "acid": rng.uniform(size=NUM_ARMS),
        }
    )
    arms.to_csv(tmp_path / "arms.csv", index=False)
    return tmp_path


def measure(folder, num_rows=24, is_noise=False):
    arms = pd.read_csv(folder / "arms.csv")
    rng = np.random.default_rng(1)
    rows = rng.permutation(NUM_ARMS)[:num_rows]
    heat = arms.iloc[rows, 1].to_numpy()
    rewards = rng.normal(scale=0.5, size=num_rows)
    if not is_noise:
        rewards += 80 - 0.05 * (heat - 60) ** 2
    results = pd.DataFrame({"id": arms["id"][rows], "yield & <b>": rewards})
    results.to_csv(folder / "results.csv", index=False)


def suggest(*words):
    words = ["suggest", "arms.csv", "--reward", "yield & <b>", *words]
    return main([*words, "--observations=results.csv", "--batch-size=6"])


def write_report(folder, *words):
    assert suggest("--report=report.html", *words) == 0
    return folder / "report.html"


def assert_self_contained(path, num_images):
    """Assert what a mail needs: all pictures in the page, nothing from elsewhere."""
    parsed = Parsed(path)
    images = parsed.all("img")
    assert len(images) == num_images
    for image in images:
        kind, data = image["src"].split(",")
        assert kind == "data:image/svg+xml;base64"
        svg = ElementTree.fromstring(base64.b64decode(data, validate=True))
        assert svg.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(svg)
        assert image["alt"].strip()
    assert not parsed.all("script")
    policy = parsed.all("meta")[-1]
    assert policy["http-equiv"] == "Content-Security-Policy"
    assert policy["content"].startswith("default-src 'none'; img-src data:;")
    return parsed


@pytest.mark.usefixtures("full_fits")
def test_a_page_stands_alone_whatever_the_tables_hold(folder):
    measure(folder)
    parsed = assert_self_contained(write_report(folder, "--seed", "7"), num_images=4)
    batch = pd.read_csv(folder / "next.csv")
    for text in (
        *batch["id"],
        *(
            f"{in_digits_of(row.low, row.std)} to {in_digits_of(row.high, row.std)}"
            for row in batch.itertuples()
        ),
        "yield & <b>",
        "heat <img src=http://localhost/x>",
        "The model passes its checks.",
        "Error of the model: ",
        "5-fold cross-validation",
        "MaternKernel",
        f"torch {torch.__version__}",
        "--seed 7 ",
        "chosen from 24 results so far",
    ):
        assert text in parsed.text
    assert parsed.all("html") == [{"lang": "en"}]
    assert len(parsed.all("h2")) == 6
    assert len(parsed.all("caption")) == len(parsed.all("table"))


def test_structures_stand_beside_the_picks(folder):
    arms = pd.read_csv(folder / "arms.csv")
    arms["smiles"] = ["C" * (1 + n // 4) + "ONSF"[n % 4] for n in range(NUM_ARMS)]
    arms.to_csv(folder / "arms.csv", index=False)
    measure(folder)
    path = write_report(folder, "--smiles", "smiles")
    parsed = assert_self_contained(path, num_images=2 + 6)
    picked = pd.read_csv(folder / "next.csv")["id"]
    drawn = draw_molecules(list(arms.set_index("id")["smiles"][picked]))
    for name, svg, image in zip(picked, drawn, parsed.all("img")[2:], strict=True):
        assert image["alt"] == f"structure of {name}"
        assert base64.b64decode(image["src"].split(",")[1]).decode() == svg
    reasons = re.findall("could beat|improves the model|, best so far", parsed.text)
    assert len(reasons) == 6
    assert "TanimotoKernel" in parsed.text


def test_the_report_changes_no_other_output(folder, capsys):
    measure(folder)
    assert suggest() == 0
    plain, table = capsys.readouterr().out, (folder / "next.csv").read_bytes()
    write_report(folder)
    assert (folder / "next.csv").read_bytes() == table
    lines = plain.replace("To repeat this: ", "Wrote report.html\nTo repeat this: ")
    assert lines != plain
    assert capsys.readouterr().out == lines


@pytest.mark.parametrize("num_rows", [0, 1, 9])
def test_few_measurements_are_not_judged(folder, num_rows):
    measure(folder, num_rows)
    is_fitted, is_first = num_rows >= 4, num_rows == 0
    num_images = 0 if is_first else 1 + is_fitted
    text = assert_self_contained(write_report(folder), num_images).text
    assert ("There are too few results to fit a model" in text) != is_fitted
    assert ("The model cannot be checked yet." in text) != is_first
    assert "6 measurements to make next, on 6 of 40 candidates" in text
    for part in ("95 % interval", "noise of a single measurement", "±"):
        assert (part in text) == is_fitted


@pytest.mark.parametrize(
    ("limit", "is_noise", "verdict"),
    [
        (None, True, "Do not trust the model. The model cannot yet be told from gues"),
        ("CHANCE_QUANTILE", True, "The model predicts no better than the average"),
        ("FAR_OFF", False, "Do not trust the model's intervals."),
    ],
)
def test_the_page_says_why_a_model_cannot_be_trusted(
    folder, monkeypatch, limit, is_noise, verdict
):
    measure(folder, NUM_ARMS, is_noise)
    if limit is not None:
        monkeypatch.setattr(diagnosis, limit, -99)
    assert verdict in Parsed(write_report(folder)).text


def rounds_of(rewards, column=None, cells=(), index=None, failed=(), **name):
    """Return the rewards of each round, by its name."""
    results = pd.DataFrame({"id": "a", "reward": rewards}, index)
    if column is not None:
        results[column] = cells
    paths = ["results.csv"] if index is None else index.get_level_values(0).unique()
    options = {"observations": [*map(Path, paths)], "batch_size": 2}
    args = SuggestOptions(**options, round=name.get("name", column))
    told = {"results": results, "rewards": np.array(rewards)}
    last = Table(results, failed=pd.Index(failed))
    rounds = read_rounds(SimpleNamespace(args=args, last=last, **told))
    parts = [part for _, part in rounds.groupby("key")]
    return [(part["name"].iloc[0], [*part["reward"]]) for part in parts]


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        (10, 2, ["2", "10"]),
        (20260131, 20260130, ["20260130", "20260131"]),
        ("b", "a", ["b", "a"]),
        ("2026-03-01", "2026-01-31", ["2026-01-31", "2026-03-01"]),
    ],
)
def test_rounds_are_in_the_order_of_numbers_dates_or_rows(one, other, names):
    """The row in flight needs no round yet."""
    plates = [one, other, one, None, other]
    found = rounds_of([0.0, 1.0, 2.0, np.nan, 4.0], "plate", plates)
    rewards = {str(one): [0, 2], str(other): [1, 4]}
    assert found == [(name, rewards[name]) for name in names]


def test_rounds_without_a_column_are_of_the_batch_size():
    """Rows in flight and failed rows count, so later ones stay in their rounds."""
    file = pd.MultiIndex.from_product([["results.csv"], [0, 1, 2, 4, 5, 7]])
    found = rounds_of([0.0, 1.0, np.nan, 3.0, 4.0, 5.0], index=file, failed=[3])
    assert found == [(1, [0, 1]), (3, [3, 4]), (4, [5])]


def test_rounds_are_files_or_the_column_round():
    files = pd.MultiIndex.from_product([["b.csv", "a.csv"], [0, 1, 2]])
    rewards = [0.0, np.nan, 2.0, 3.0, 4.0, 5.0]
    assert rounds_of(rewards, index=files) == [("b.csv", [0, 2]), ("a.csv", [3, 4, 5])]
    found = rounds_of(rewards, "round", [2, None, 1, 1, 1, 2], files, name=None)
    assert found == [("1", [2, 3, 4]), ("2", [0, 5])]


def test_a_round_of_failures_alone_keeps_its_number(folder, monkeypatch):
    measure(folder, 18)
    results = pd.read_csv(folder / "results.csv").astype("object")
    results.iloc[6:12, 1] = "failed"
    drawn, names = [], ["a.csv", "b.csv", "c.csv"]
    monkeypatch.setattr(report, "_draw", lambda *_, **options: drawn.append(options))
    for name, at in zip(names, (0, 6, 12), strict=True):
        results[at : at + 6].to_csv(name, index=False)
    words = ["suggest", "arms.csv", "--reward", "yield & <b>", "--report=r.html"]
    assert main([*words, "--observations", *names]) == 0
    assert [[*own["numbers"]] for own in drawn if "numbers" in own] == [[1, 3]]


def test_a_column_round_is_used_by_a_report(folder, capsys):
    measure(folder)
    results = pd.read_csv(folder / "results.csv").assign(round=1)
    results.to_csv(folder / "results.csv", index=False)
    assert suggest() == 0
    assert "that are not used: round." in capsys.readouterr().out
    write_report(folder)
    assert "not used" not in capsys.readouterr().out
    assert suggest("--round", "day") == 2
    assert "has no column 'day'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "std", "expected"),
    [
        (-1234.567891, 5.2e-5, "-1234.567891"),
        (41.2567, 0.29, "41.26"),
        (12.0, 0.29, "12.00"),
        (-86.64, 2600, "-87"),
        (-0.001, 0.5, "0.00"),
        (3.14159e-12, 2e-14, "3.142e-12"),
        (6.02214076e23, 4e19, "6.02214e+23"),
        (0.3, 2e-300, "3.000000000000000e-01"),
        (1234.5678, 0, "1234.5678"),
    ],
)
def test_digits_go_down_to_the_second_of_the_deviation(value, std, expected):
    assert in_digits_of(value, std) == expected


@pytest.mark.usefixtures("full_fits")
@pytest.mark.parametrize("is_learned", [True, False], ids=["composite", "tanimoto"])
def test_the_nearest_measured_is_that_of_the_largest_correlation(is_learned):
    rng = np.random.default_rng(0)
    if is_learned:
        arms, model = rng.uniform(5, 9, size=(30, 2)), ()
    else:
        arms = rng.integers(1, 5, size=(30, 64)).astype(float)
        model = (ScaleKernel(TanimotoKernel()), 1.0)
    bandit = GPBandit(torch.tensor(arms), *model)
    measured = torch.arange(0, 30, 3)
    indices = torch.cat([measured, measured.flip(0)])
    rewards = torch.tensor(arms[indices].sum(axis=1) + rng.normal(size=20))
    bandit.add_observations(indices, rewards)
    picks = bandit.ask(5)
    nearest = nearest_measured(bandit, picks, told_table(indices, rewards))
    x, z = arms[picks], arms[measured]
    if is_learned:
        parts = learned_parts(bandit.covar_module)
        width = np.ptp(arms, axis=0)
        expected = composite_covariance(x / width, z / width, parts)
        expected /= sum(variance for _, variance in parts)
    else:
        x = x[:, None]
        expected = np.minimum(x, z).sum(axis=-1) / np.maximum(x, z).sum(axis=-1)
    np.testing.assert_allclose(nearest["similarity"], expected.max(axis=1), atol=1e-12)
    place = expected.argmax(axis=1)
    np.testing.assert_array_equal(nearest["arm"], measured[place])
    means = (rewards[:10] + rewards[10:].flip(0)) / 2
    np.testing.assert_allclose(nearest["mean"], means[place])


def test_a_kernel_is_told_by_its_parts_and_hyperparameters():
    bandit = GPBandit(torch.rand(9, 12, dtype=torch.double))
    trend = bandit.covar_module.kernels[0].base_kernel
    trend.lengthscale = torch.arange(12.0, 0.0, -1.0).double()
    names = [f"column {number}" for number in range(12)]
    features = Features(bandit.arms, None, names, names)
    told = describe_kernel(bandit.covar_module, features)
    part = "ScaleKernel, MaternKernel"
    assert told["kernel"] == f"AdditiveKernel, {part}, {part}"
    lengthscales = told["part 1 lengthscale"]
    assert lengthscales.startswith("column 0 12, column 1 11, column 2 10")
    assert lengthscales.endswith("column 9 3 and 2 more")
    assert told["part 2 outputscale"] == "0.2"
    scaled = ScaleKernel(TanimotoKernel())
    scaled.outputscale = 2.5
    told = describe_kernel(scaled, features)
    assert told == {"kernel": "ScaleKernel, TanimotoKernel", "outputscale": "2.5"}

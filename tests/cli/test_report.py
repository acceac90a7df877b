import argparse
import base64
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import ScaleKernel
from typing_extensions import override

from botorch_bkb.__main__ import main
from botorch_bkb.bandits import BBKB
from botorch_bkb.cli.campaign import Campaign
from botorch_bkb.cli.diagnosis import HeldOut
from botorch_bkb.cli.page import page, table, tag
from botorch_bkb.cli.report import (
    Check,
    check_predictions,
    describe_kernel,
    nearest_measured,
    plan_report,
    verdict,
)
from botorch_bkb.integrations.chem import draw_molecules
from botorch_bkb.models.kernels import TanimotoKernel
from tests.helpers import learned_parts
from tests.reference import composite_covariance


NUM_ARMS = 40
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Writes into the page how wide each picture turned out to be, 0 if it is none, and by
# how much the page overflows on a telephone and on a desk.
PROBE = """<script>
addEventListener("load", () => {
  const main = document.querySelector("main"), images = [...document.images];
  document.body.dataset.widths = images.map(image => image.naturalWidth).join(" ");
  document.body.dataset.overflow = [328, 1100].map(width => {
    main.style.width = `${width}px`;
    return main.scrollWidth - main.clientWidth;
  }).join(" ");
});
</script>"""


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
        return " ".join(self.texts)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    arms = pd.DataFrame(
        {
            "id": [f"<script>alert({number})</script>" for number in range(NUM_ARMS)],
            "heat <img src=http://localhost/x>": rng.uniform(20, 90, size=NUM_ARMS),
            "acid": rng.uniform(size=NUM_ARMS),
        }
    )
    arms.to_csv(tmp_path / "arms.csv", index=False)
    return tmp_path


def measure(folder, num_rows=24, **columns):
    arms = pd.read_csv(folder / "arms.csv")
    rng = np.random.default_rng(1)
    rows = rng.permutation(NUM_ARMS)[:num_rows]
    heat = arms.iloc[rows, 1].to_numpy()
    rewards = 80 - 0.05 * (heat - 60) ** 2 + rng.normal(scale=0.5, size=num_rows)
    results = pd.DataFrame({"id": arms["id"][rows], "yield & <b>": rewards, **columns})
    results.to_csv(folder / "results.csv", index=False)


def write_report(folder, *words):
    path = folder / "report.html"
    paths = ["--observations", "results.csv", "--output", "next.csv", "--report", path]
    paths = [folder / word if str(word)[-4:] == ".csv" else word for word in paths]
    words = [folder / "arms.csv", *paths, "--reward", "yield & <b>", *words]
    assert main(["suggest", *map(str, words), "--batch-size", "6"]) == 0
    return path


def browse(path):
    """Return the page's tree and the console of a browser that has opened it."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return None
    profile = f"--user-data-dir={path.parent / 'profile'}"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", profile]
    command += ["--enable-logging=stderr", "--virtual-time-budget=5000"]
    command += ["--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, console


def assert_self_contained(path, num_images):
    """Assert what a mail needs: every picture in the page, and nothing from elsewhere.

    By the page's text; where there is a browser, by what that shows, too.
    """
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
    names = {name for name, _ in parsed.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "base", "a"}
    loading = {"href", "srcset", "background", "action", "data", "poster"}
    assert not any(loading & set(attributes) for _, attributes in parsed.tags)
    assert not any(key[:2] == "on" for _, found in parsed.tags for key in found)
    (style,) = re.findall("<style>(.*)</style>", path.read_text(), re.DOTALL)
    assert not re.search("url|@import", style)
    shown = browse(path)
    if shown is not None:
        assert shown[1] == []
        assert "</main>" in shown[0]
        # The probe is a script, which the page's own policy refuses.
        copy = path.with_name("probed.html")
        policy = '<meta http-equiv="Content-Security-Policy"'
        text = path.read_text(encoding="utf-8").replace(policy, "<meta")
        copy.write_text(text.replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
        dom, console = browse(copy)
        assert console == []
        (widths,) = re.findall('data-widths="(.*?)"', dom)
        assert len(widths.split()) == num_images
        assert all(int(width) > 0 for width in widths.split())
        # Tables scroll in their own boxes, the page does not.
        assert 'data-overflow="0 0"' in dom


def test_a_page_stands_alone_whatever_the_tables_hold(folder):
    measure(folder)
    path = write_report(folder)
    assert_self_contained(path, num_images=2)
    parsed = Parsed(path)
    assert parsed.all("html") == [{"lang": "en"}]
    assert "<script>alert(1" in parsed.text
    assert "heat <img src=http://localhost/x>" in parsed.text
    assert "yield & <b>" in parsed.text
    heads = [name for name, _ in parsed.tags if re.fullmatch("h[1-6]", name)]
    assert heads == ["h1", *["h2"] * 4]
    assert len(parsed.all("caption")) == len(parsed.all("table"))
    boxes = [box for box in parsed.all("div") if box.get("class") == "scroll"]
    assert len(boxes) == len(parsed.all("table"))
    assert all(box["tabindex"] == "0" and box["aria-label"] for box in boxes)
    assert len(parsed.all("figcaption")) == 2


def test_structures_stand_beside_the_picks(folder):
    arms = pd.read_csv(folder / "arms.csv")
    arms["smiles"] = ["C" * (1 + n // 4) + "ONSF"[n % 4] for n in range(NUM_ARMS)]
    arms.to_csv(folder / "arms.csv", index=False)
    measure(folder)
    path = write_report(folder, "--smiles", "smiles")
    assert_self_contained(path, num_images=2 + 6)
    picked = pd.read_csv(folder / "next.csv")["id"]
    pictures = Parsed(path).all("img")[2:]
    assert [picture["alt"] for picture in pictures] == [
        f"structure of {name}" for name in picked
    ]
    smiles = arms.set_index("id")["smiles"][picked]
    for picture, drawn in zip(pictures, draw_molecules(list(smiles)), strict=True):
        assert base64.b64decode(picture["src"].split(",")[1]).decode() == drawn
    text = Parsed(path).text
    assert text.count("the best so far") == 6
    assert "TanimotoKernel" in text


def test_a_browser_that_finds_fault_says_so(tmp_path):
    """What the check above rests on: where there is a browser, it tells."""
    path = tmp_path / "bad.html"
    path.write_text("<body><script>console.error('bad')</script></body>")
    shown = browse(path)
    assert shown is None or len(shown[1]) == 1


def test_the_report_changes_no_other_output(folder, capsys):
    measure(folder)
    words = ["--observations", str(folder / "results.csv"), "--batch-size", "6"]
    words += ["--reward", "yield & <b>", "--output", str(folder / "next.csv")]
    assert main(["suggest", str(folder / "arms.csv"), *words]) == 0
    plain, table = capsys.readouterr().out, (folder / "next.csv").read_bytes()
    write_report(folder)
    assert (folder / "next.csv").read_bytes() == table
    wrote = f"Wrote {folder / 'report.html'}\n"
    assert capsys.readouterr().out == plain + wrote


def test_a_first_batch_is_reported_without_a_model(folder):
    path = write_report(folder)
    assert_self_contained(path, num_images=0)
    text = Parsed(path).text
    assert "Nothing is measured yet" in text
    assert "nearest measured" not in text
    assert "6 measurements to make next, on 6 of 40 candidates" in text


@pytest.mark.parametrize("num_rows", [1, 3, 9])
def test_few_measurements_are_not_judged(folder, num_rows):
    measure(folder, num_rows)
    path = write_report(folder)
    assert_self_contained(path, num_images=1 + (num_rows >= 8))
    text = Parsed(path).text
    assert "The model cannot be judged yet." in text
    is_assumed = "Kernel and noise are assumed so far" in text
    assert is_assumed == (num_rows < 4)
    has_deviations = "95 % interval" in text and "noise of a single measurement" in text
    assert has_deviations == (num_rows > 1)
    assert ("±" in text) == (num_rows > 1)


def test_the_page_says_what_the_batch_and_its_assumptions_are(folder):
    measure(folder)
    text = Parsed(write_report(folder, "--seed", "7")).text
    batch = pd.read_csv(folder / "next.csv")
    for name in batch["id"]:
        assert name in text
    for low, high in zip(batch["low"], batch["high"], strict=True):
        assert f"{low:#.4g} to {high:#.4g}" in text
    assert "5-fold cross-validation" in text
    assert "MaternKernel" in text
    assert f"torch {torch.__version__}" in text
    assert re.search(r"seed\s+7\s", text)
    assert re.search(r"results used\s+24\s", text)


def test_rewards_of_noise_are_not_trusted(folder):
    measure(folder, NUM_ARMS)
    results = pd.read_csv(folder / "results.csv")
    results["yield & <b>"] = np.random.default_rng(1).normal(size=NUM_ARMS)
    results.to_csv(folder / "results.csv", index=False)
    text = Parsed(write_report(folder)).text
    assert "The model is not to be trusted." in text
    assert "cannot tell candidates apart" in text


def options(tmp_path, **named):
    given = {"arms": tmp_path / "arms.csv", "observations": tmp_path / "results.csv"}
    given |= {"output": tmp_path / "next.csv", "report": tmp_path / "report.html"}
    given |= {"round": "plate", "batch_size": 2}
    return argparse.Namespace(**(given | named))


def campaign_of(rewards, **columns):
    results = pd.DataFrame({"id": "a", "reward": rewards, **columns})
    rewards = torch.tensor(rewards, dtype=torch.double)
    indices = torch.zeros(len(rewards), dtype=torch.long)
    arms = pd.DataFrame({"id": ["a"]})
    return Campaign(arms, 1, torch.tensor([True]), results, indices, rewards)


@pytest.mark.parametrize(
    ("plates", "names", "rewards"),
    [
        ([10, 2, 10, None, 2], ["2", "10"], [[1, 4], [0, 2]]),
        (
            [20260131, 20260130, 20260131, None, 20260130],
            ["20260130", "20260131"],
            [[1, 4], [0, 2]],
        ),
        (["b", "a", "b", None, "a"], ["b", "a"], [[0, 2], [1, 4]]),
        (
            ["2026-03-01", "2026-01-31", "2026-03-01", None, "2026-01-31"],
            ["2026-01-31", "2026-03-01"],
            [[1, 4], [0, 2]],
        ),
    ],
    ids=["numbers", "long numbers", "names", "dates"],
)
def test_rounds_are_in_the_order_of_numbers_dates_or_rows(
    tmp_path, plates, names, rewards
):
    """The row in flight needs no round yet."""
    campaign = campaign_of([0.0, 1.0, 2.0, np.nan, 4.0], plate=plates)
    rounds = plan_report(options(tmp_path), campaign)
    assert rounds.names == names
    assert [part.tolist() for part in rounds.rewards] == rewards


def test_rounds_that_no_column_tells_are_of_the_batch_size(tmp_path):
    campaign = campaign_of([0.0, 1.0, np.nan, 2.0, 3.0, 4.0])
    rounds = plan_report(options(tmp_path, round=None), campaign)
    assert rounds.names == ["1 to 2", "3 to 4", "5 to 5"]
    assert [part.tolist() for part in rounds.rewards] == [[0, 1], [2, 3], [4]]
    assert plan_report(options(tmp_path, round=None, report=None), campaign) is None


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"round": "day"}, "has no column 'day'"),
        ({"round": "gap"}, r"has no round in row 2 .*, column 'gap'"),
        ({"report": None}, "--round is for the report"),
        ({"report": Path("arms.csv")}, "is one of the tables"),
        ({"report": Path("next.csv")}, "is one of the tables"),
        ({"report": Path("nowhere/report.html")}, "There is no folder"),
    ],
)
def test_what_cannot_be_reported_is_refused(tmp_path, named, message):
    named = {
        name: tmp_path / value if isinstance(value, Path) else value
        for name, value in named.items()
    }
    campaign = campaign_of([0.0, 1.0], plate=[1, 2], gap=["a", None])
    with pytest.raises(InputDataError, match=message):
        plan_report(options(tmp_path, **named), campaign)


def test_a_report_that_cannot_be_is_refused_before_the_work(folder, capsys):
    words = ["--round", "plate", "--output", str(folder / "next.csv")]
    assert main(["suggest", str(folder / "arms.csv"), *words]) == 2
    assert "--round is for the report" in capsys.readouterr().err
    assert not (folder / "next.csv").exists()


def test_measurements_are_compared_with_what_is_predicted_without_them():
    arms = torch.tensor([3, 5, 8])
    mean, variance = torch.tensor([[1.0, 2.0, 4.0], [0.25, 1.0, 4.0]]).double()
    indices, rewards = torch.tensor([8, 3, 8, 5]), torch.tensor([5.0, 3.0, 7.0, 2.0])
    check = check_predictions(
        HeldOut(arms, mean, variance, is_refitted=True), indices, rewards.double()
    )
    np.testing.assert_array_equal(check.mean, [4, 1, 4, 2])
    np.testing.assert_allclose(check.half_width, 1.96 * np.array([2, 0.5, 2, 1]))
    assert check.share_inside == 0.75
    assert check.error == pytest.approx(np.sqrt((1 + 4 + 9 + 0) / 4))
    # Of the other candidates' measurements: 5/2 for arm 8, 14/3 for 3, 5 for 5.
    others = np.array([2.5, 14 / 3, 2.5, 5])
    expected = np.sqrt(((others - rewards.numpy()) ** 2).mean())
    assert check.error_of_mean == pytest.approx(expected)
    assert check.bounds_of_share[0] == pytest.approx(0.95 - 3 * np.sqrt(0.0475 / 3))


def check_of(num_inside, num_candidates, error=1.0, error_of_mean=2.0):
    measured = np.where(np.arange(num_candidates) < num_inside, 0.0, 5.0)
    return Check(
        measured=measured,
        mean=np.zeros(num_candidates),
        half_width=np.full(num_candidates, 2.0),
        num_candidates=num_candidates,
        error=error,
        error_of_mean=error_of_mean,
    )


def test_a_model_is_trusted_by_words_that_numbers_bear():
    headline, (inside, errors) = verdict(check_of(95, 100), [])
    assert headline == "Nothing speaks against the model."
    assert inside == "95 % of the measurements lie inside their 95 % interval."
    assert "is 1.000; that of the mean of the other candidates is 2.000." in errors


def test_intervals_are_not_trusted_where_too_few_hold():
    # 0.95 - 3 sqrt(0.95 0.05 / 100) = 0.885
    assert verdict(check_of(89, 100), [])[0] == "Nothing speaks against the model."
    headline, (inside, _) = verdict(check_of(88, 100), [])
    assert headline == "The model's intervals are not to be trusted."
    assert "where it should be 88 % at least, even by bad luck" in inside
    assert "wider than" in verdict(check_of(400, 400), [])[1][0]


def test_a_model_that_is_no_better_than_a_mean_is_not_trusted():
    headline, (reason, _) = verdict(check_of(95, 100, error=2.0), [])
    assert headline == "The model is not to be trusted."
    assert reason.startswith("The model predicts no better than a mean: on")


def test_what_is_known_already_counts():
    headline, sentences = verdict(check_of(95, 100), ["all rewards are 3"])
    assert headline == "The model is not to be trusted."
    assert sentences[0] == "All rewards are 3."
    headline, sentences = verdict(None, ["all rewards are 3"])
    assert headline == "The model is not to be trusted."
    assert sentences == ["All rewards are 3."]
    assert verdict(check_of(0, 15), [])[0] == "The model cannot be judged yet."


@pytest.mark.parametrize("is_learned", [True, False], ids=["composite", "tanimoto"])
def test_the_nearest_measured_is_that_of_the_largest_correlation(is_learned):
    rng = np.random.default_rng(0)
    if is_learned:
        arms, kernel = rng.uniform(5, 9, size=(30, 2)), None
    else:
        arms = rng.integers(0, 4, size=(30, 64)).astype(float)
        kernel = ScaleKernel(TanimotoKernel())
    bandit = BBKB(torch.tensor(arms), covar_module=kernel)
    measured = torch.arange(0, 30, 3)
    rewards = torch.tensor(arms[measured].sum(axis=1))
    bandit.tell(measured, rewards, external=True)
    picks = bandit.ask(size=5)
    nearest, similarity = nearest_measured(bandit, picks, measured)
    x, z = arms[picks], arms[measured]
    if is_learned:
        parts = learned_parts(bandit.covar_module)
        width = np.ptp(arms, axis=0)
        expected = composite_covariance(x / width, z / width, parts)
        expected /= sum(variance for _, variance in parts)
    else:
        x = x[:, None]
        expected = np.minimum(x, z).sum(axis=-1) / np.maximum(x, z).sum(axis=-1)
    np.testing.assert_allclose(similarity, expected.max(axis=1), atol=1e-12)
    np.testing.assert_array_equal(nearest, measured[expected.argmax(axis=1)])


def test_a_kernel_is_told_by_its_parts_and_hyperparameters():
    bandit = BBKB(torch.rand(9, 12, dtype=torch.double))
    trend = bandit.covar_module.kernels[0].base_kernel
    trend.lengthscale = torch.arange(12.0, 0.0, -1.0).double()
    names = [f"column {number}" for number in range(12)]
    told = describe_kernel(bandit.covar_module, names)
    part = "ScaleKernel, MaternKernel"
    assert told["kernel"] == f"AdditiveKernel, {part}, {part}"
    lengthscales = told["part 1 lengthscale"]
    assert lengthscales.startswith("column 11 1, column 10 2, column 9 3")
    assert lengthscales.endswith("column 2 10 and 2 more, up to 12")
    assert float(told["part 1 outputscale"]) == pytest.approx(0.7)
    assert float(told["part 2 outputscale"]) == pytest.approx(0.2)
    scaled = ScaleKernel(TanimotoKernel())
    scaled.outputscale = 2.5
    told = describe_kernel(scaled, names)
    assert told == {"kernel": "ScaleKernel, TanimotoKernel", "outputscale": "2.5"}


def test_elements_are_escaped_and_tables_named():
    rows = [["<b>", "1"], ["&", tag("em", '"', title='">')]]
    text = page("<i>", [tag("p", "a", tag("b", "c"), "d"), table("t", "xy", rows, {1})])
    assert text.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert "<title>&lt;i&gt;</title>" in text
    assert "<p>a<b>c</b>d</p>" in text
    assert '<th scope="row">&lt;b&gt;</th><td class="number">1</td>' in text
    assert '<th scope="col">x</th><th scope="col" class="number">y</th>' in text
    assert '<em title="&quot;&gt;">"</em>' in text

"""The page "Figures" and README say what the rows of the benchmarks say."""

import csv
import re
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import figures
from tests.test_benchmarks import options


ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "figures.rst").read_text()
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The tables of the page, made anew from the rows."""
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "PAGE", folder)
        args = options(figures, "--page")
        args.output = folder / "output"
        figures.run(args)
    return {path.name: path.read_text() for path in folder.glob("*.csv")}


def test_its_tables_are_made_of_the_rows(tables):
    shown = re.findall(r":file: figures/(\S+)", PAGE)
    assert len(shown) > 1
    assert sorted(shown) == sorted(tables)
    for name, text in tables.items():
        assert (figures.PAGE / name).read_text() == text, name


def test_its_pictures_are_there():
    shown = set(re.findall(r"image:: figures/(\S+)\.png", PAGE))
    assert shown == {path.stem for path in figures.PAGE.glob("*.png")}
    assert shown <= set(figures.PAGE_PICTURES)


def numbers_of(text):
    """Return numbers as they are printed, without their commas."""
    return re.findall(r"(?<![\w.])\d+(?:\.\d+)?", text.replace(",", ""))


def cells_of(*names):
    """Return the numbers of tables, those of their headings too."""
    texts = [(figures.PAGE / name).read_text() for name in names]
    cells = [cell for row in csv.reader("\n".join(texts).splitlines()) for cell in row]
    return {float(number) for cell in cells for number in numbers_of(cell)}


def is_a_rounding(number, cells):
    decimals = len(number.partition(".")[2])
    return any(f"{abs(cell):.{decimals}f}" == number for cell in cells)


def said(start):
    """Return the paragraphs that start in bold, by section."""
    sections = re.split(r"\n(?=.+\n-{5,}\n)", PAGE)[1:]
    assert len(sections) == 7
    paragraph = rf"\*\*{start}\*\*(.+?)\n\n"
    return {
        section: "".join(re.findall(paragraph, section + "\n\n", re.DOTALL))
        for section in sections
    }


def test_what_it_says_of_ours_are_numbers_of_its_tables():
    for section, ours in said(r"Ours\.").items():
        cells = cells_of(*re.findall(r":file: figures/(\S+)", section))
        for number in numbers_of(ours):
            assert is_a_rounding(number, cells), f"{number}\n{section}"


def test_what_it_says_of_earlier_runs_is_on_the_page_of_performance():
    page = (ROOT / "docs" / "performance.rst").read_text()
    there = set(numbers_of(page)) | {f"0{x}" for x in re.findall(r"(?<!\d)\.\d+", page)}
    for section, earlier in said("An earlier run").items():
        assert set(numbers_of(earlier)) <= there, section


def test_readme_has_its_numbers_from_the_tables():
    (sentence,) = re.findall(r"\[Figures\]\(docs/figures\.rst\)(.+?)\n\n", README, re.S)
    numbers = numbers_of(re.sub(r"\(.*?\)", "", sentence))  # not what the paper says
    assert len(numbers) > 1
    cells = cells_of("bbkb.csv")
    assert not [number for number in numbers if not is_a_rounding(number, cells)]


def test_rows_are_traced_and_small():
    files = list(figures.RESULTS.glob("*.csv.gz"))
    assert {path.name.removesuffix(".csv.gz") for path in files} <= set(figures.FIGURES)
    assert sum(path.stat().st_size for path in files) < 5e6
    for path in files:
        table = pd.read_csv(path)
        traces = ["commit", "torch", "threads", "device", "seed", "load"]
        assert table[traces].notna().all(axis=None)
        assert not table["commit"].str.contains("dirty|unknown").any(), path

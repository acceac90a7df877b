"""README and docs/: names exist, and code and commands run."""

import importlib
import inspect
import re
import runpy
import textwrap
from pathlib import Path

import pytest
import torch

from botorch_bkb.__main__ import main
from botorch_bkb.cli.arguments import build_parser


DOCS = Path(__file__).parent.parent / "docs"
README = DOCS.parent / "README.md"
CONTRIBUTING = DOCS.parent / "CONTRIBUTING.md"
PROJECTS = runpy.run_path(str(DOCS / "inventories.py"))["PROJECTS"]
SILENT_AX = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what it imports
LINKED = [name for _, names in PROJECTS.values() for name in names]


@SILENT_AX
@pytest.mark.parametrize("name", LINKED)
def test_names_of_other_projects_are_where_python_defines_them(name):
    module, _, name = name.rpartition(".")
    thing = getattr(importlib.import_module(module), name)
    assert (thing.__module__, thing.__qualname__) == (module, name)


def test_the_reference_has_every_package():
    package = DOCS.parent / "botorch_bkb"
    names = {path.parent.name for path in package.glob("*/__init__.py")} | {
        "plotting",
        "desirability",
    }
    listed = (DOCS / "api.rst").read_text().split()
    assert {word for word in listed if word.startswith("botorch_bkb.")} == {
        f"botorch_bkb.{name}" for name in names
    }


LISTED = re.findall(r"~(botorch_bkb[\w.]+)", (DOCS / "api.rst").read_text())


def named(name):
    module, _, name = name.rpartition(".")
    return getattr(importlib.import_module(module), name)


def public_names():
    """Return what the packages of the reference export, and what it lists."""
    packages = {name.rpartition(".")[0] for name in LISTED}
    exported = {
        f"{package}.{name}"
        for package in packages
        for name in getattr(importlib.import_module(package), "__all__", [])
    }
    return sorted({*exported, *LISTED})


@SILENT_AX
def test_the_reference_lists_every_public_class_and_function():
    things = [named(name) for name in LISTED]
    assert len(set(map(id, things))) == len(things)  # none twice
    public = {name: named(name) for name in public_names()}
    assert len(public) > 100
    missing = [
        name
        for name, thing in public.items()
        if (inspect.isclass(thing) or inspect.isfunction(thing))
        and not any(thing is one for one in things)
    ]
    assert missing == []


def test_what_readme_links_to_is_there():
    text = README.read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", text)
    links += re.findall(r'src="([^"]+)"', text)
    assert len(links) > 20
    assert not [link for link in links if not (README.parent / link).exists()]


def test_ci_runs_the_test_command_of_readme():
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(), flags=re.DOTALL)
    demo, tests = (block.strip() for block in blocks[:2])
    assert tests in (README.parent / ".ci" / "run").read_text()
    assert tests.endswith(".venv/bin/pytest")
    assert demo.endswith(".venv/bin/python -m botorch_bkb")


def test_tables_of_readme_are_those_of_its_command(tmp_path, monkeypatch):
    """Which candidates are chosen first may depend on rounding."""
    text = README.read_text()
    tables = re.findall(r"\n\n(\| id \|.*?)\n\n", text, flags=re.DOTALL)
    lines = [line[1:-1] for table in tables for line in table.split("\n")]
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    at = [n for n, row in enumerate(cells) if row[0] == "id"]
    given, shown = (cells[: at[1]], cells[at[1] :])
    (command,) = re.findall(r"botorch_bkb (suggest .* --output batch_1.csv)\n", text)
    monkeypatch.chdir(tmp_path)
    rows = [",".join(row) for row in given if row[0] != "---"]
    Path("conditions.csv").write_text("\n".join(rows))
    assert main(command.split()) == 0
    batch = [line.split(",") for line in Path("batch_1.csv").read_text().split()]
    assert batch[0] == shown[0]
    assert len(batch) == len(shown) - 1  # the line below the header
    settings = {row[0]: row[1:] for row in given}
    for row in [*batch[1:], *shown[2:]]:
        assert row[-1] == ""
        assert row[1:-1] == settings[row[0]]


def documented_arguments(*texts):
    """Return the names in the ``Args`` of docstrings."""
    names = []
    for text in texts:
        block = re.search(r"^Args:\n((?: +.*\n|\n)*)", f"{text}\n", re.MULTILINE)
        for line in re.findall(
            r"^ {4}(\*{0,2}\w.*?):", block[1] if block else "", re.M
        ):
            names += [name.strip("* ") for name in line.split(",")]
    return names


def documented_callables():
    """Yield every public function, class and method with its docstrings."""
    for name in public_names():
        thing = named(name)
        if inspect.isfunction(thing):
            yield name, thing, [inspect.getdoc(thing)]
        if not inspect.isclass(thing):
            continue
        for method, function in inspect.getmembers(thing, inspect.isroutine):
            where = getattr(inspect.unwrap(function), "__module__", None) or ""
            if not where.startswith("botorch_bkb"):
                continue
            if method == "__init__":
                yield name, thing, [inspect.getdoc(thing), inspect.getdoc(function)]
            elif not method.startswith("_"):
                yield f"{name}.{method}", function, [inspect.getdoc(function)]


@SILENT_AX
def test_documented_arguments_are_those_of_the_signature():
    """None is missing, none is of a parent that takes it, and none is there twice."""
    wrong, found = {}, 0
    for name, thing, texts in documented_callables():
        arguments = documented_arguments(*texts)
        known = [one for one in inspect.signature(thing).parameters if one != "self"]
        found += bool(arguments)
        if arguments and sorted(arguments) != sorted(known):
            wrong[name] = sorted(set(arguments) ^ set(known))
    assert found > 100
    assert wrong == {}


@SILENT_AX
def test_no_constructor_shows_the_help_of_another_class():
    others = [
        name
        for name, thing, _ in documented_callables()
        if inspect.isclass(thing)
        and not thing.__init__.__doc__
        and inspect.getdoc(thing.__init__) != inspect.getdoc(object.__init__)
    ]
    assert others == []


def test_pages_and_sections_that_are_cited_exist():
    root, titles = DOCS.parent, set()
    for path in DOCS.rglob("*.rst"):
        titles |= set(
            re.findall(r"^(.+)\n[=\-~^]{2,}$", path.read_text(), re.MULTILINE)
        )
    cited = {}
    files = [
        *(root / "benchmarks").rglob("*.py"),
        *(root / "botorch_bkb").rglob("*.py"),
    ]
    files += [root / "README.md", *(root / "benchmarks").rglob("*.rst")]
    for path in files:
        text = re.sub(r"[\"']\n\s*f?[\"']", "", path.read_text())  # parts of a string
        text = " ".join(text.split())
        for title in re.findall(r'(?:[Pp]ages?|[Ss]ee) "([^"]+)"', text):
            cited[title] = path.name
    assert len(cited) > 3
    assert {title: cited[title] for title in cited.keys() - titles} == {}


def test_files_and_modules_that_pages_name_exist():
    root = DOCS.parent
    text = "".join(path.read_text() for path in [CONTRIBUTING, *DOCS.rglob("*.rst")])
    files = set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", text))
    files |= set(re.findall(r"(tests/[a-z_/]+\.py)", text))
    assert len(files) > 20
    for file in files:
        assert (root / file).is_file() or (root / "botorch_bkb" / file).is_file(), file
    mathematics = (DOCS / "mathematics.rst").read_text()
    for module in re.findall(r"``([a-z_]+\.[a-z_.]+)``", mathematics):
        importlib.import_module(f"botorch_bkb.{module}")


def test_pages_for_tables_name_options_that_exist():
    pages = [DOCS / "tables.rst", *(DOCS / "guides").glob("*.rst")]
    named = set(re.findall(r"``(--[a-z-]+)", "".join(map(Path.read_text, pages))))
    (commands,) = build_parser()._subparsers._group_actions
    known = commands.choices["suggest"]._option_string_actions
    assert len(named) > 20
    assert named <= {*known}


def code_of(path):
    """Return the Python blocks of a page, without their indentation."""
    block = r"\.\. code-block:: python\n\n((?: {3}.*\n|\n)+)"
    if path.suffix == ".md":
        block = r"```python\n((?:.*\n)*?)```"
    return [textwrap.dedent(code) for code in re.findall(block, path.read_text())]


WRITTEN = [
    README,
    *sorted(DOCS.glob("*.rst")),
    *sorted((DOCS / "guides").glob("*.rst")),
]
PAGES = [path for path in WRITTEN if code_of(path)]
GUIDES = runpy.run_path(str(DOCS / "run_guides.py"))


@SILENT_AX
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_python_blocks_run_in_order(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    with torch.random.fork_rng():
        torch.manual_seed(0)  # of other random rewards some fits warn
        for block in code_of(path):
            exec(compile(block, path.name, "exec"), names)
    if path == README:
        assert names["mean_reward"][names["best"]] > names["mean_reward"].max() - 0.1


@pytest.mark.parametrize("page", GUIDES["PAGES"], ids=lambda page: page.stem)
def test_guides_show_their_files_and_what_their_commands_print(page, tmp_path):
    done = GUIDES["run"](page, tmp_path / page.stem)
    assert any(part["commands"] and part["shown"] for part, _ in done)
    for part, lines in done:
        if part["shown"] is None:
            assert not part["file"]
            continue
        shown = textwrap.dedent(part["shown"])
        is_same = in_words(lines) == in_words(shown)
        if part["file"]:
            is_same = textwrap.dedent(lines) == shown
        assert is_same, (
            f"Expected {shown}\nto be\n{lines}\n"
            f"`python docs/run_guides.py {page.stem}` writes it."
        )


def test_github_shows_all_blocks_of_the_guides():
    """It shows nothing of an included file, nor of a block with a caption."""
    for page in GUIDES["PAGES"]:
        assert not re.search(r"literalinclude::|:caption:", page.read_text())


def in_words(text):
    """Return a text up to the table of the batch, without numbers."""
    text = text.partition("to measure next")[0]
    text = re.sub(r"fingerprints-\w+", "fingerprints", text)
    return re.sub(r"-?\d[\d.,]*", "0", text).split()

"""`suggest --component`: batches from combinations of lists, round after round."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from botorch_bkb.__main__ import main


ACIDS = pd.DataFrame(
    {
        "id": ["001", "002", "003", "004"],
        "smiles": ["CC(=O)O", "c1ccccc1C(=O)O", "CCC(=O)O", "O=C(O)c1ccncc1"],
    }
)
SOLVENTS = pd.DataFrame({"id": ["water", "ether", "DMF"], "boils": [100, 35, 153]})


@pytest.fixture
def folder(tmp_path):
    ACIDS.to_csv("acids.csv", index=False)
    SOLVENTS.to_csv("solvents.csv", index=False)
    pd.DataFrame(columns=[*NAMES, "yield"]).to_csv("results.csv", index=False)
    return tmp_path


COMMAND = [
    "suggest",
    "--component=acid=acids.csv",
    "--component=solvent=solvents.csv",
    "--component=temperature=20,40,60,80",
    "--component=base=none,weak",
    "--smiles",
    "acid",
    "--observations=results.csv",
    "--reward=yield",
    "--forbid=solvent=ether,temperature=80",
    "--forbid=solvent=ether, temperature = 60",
    "--batch-size=6",
    "--num-bits=64",
    "--quiet",
]
NAMES = ["acid", "solvent", "temperature", "base"]


def read(path):
    return pd.read_csv(path, dtype={"acid": str})


def measured(batch):
    acid = batch["acid"].map(dict(zip(ACIDS["id"], [0, 20, 5, 30], strict=True)))
    noise = np.linspace(0, 1, len(batch))
    return acid + batch["temperature"] / 4 + 5 * (batch["base"] == "weak") + noise


def test_a_row_per_measurement_can_be_filled_in(folder):
    command = [*COMMAND, "--per-measurement"]
    assert main(command) == 0
    batch = read("next.csv")
    assert list(batch.columns) == [*NAMES, "yield"]
    assert len(batch) == 6
    assert batch["yield"].isna().all()
    results = batch.assign(**{"yield": measured(batch)})
    results.to_csv("results.csv", index=False)
    assert main([*command, "--output=other.csv"]) == 0
    # Rows to append have the columns of the results.
    results = results[["yield", *NAMES[::-1]]].assign(plate=1, by="AB")
    results.to_csv("results.csv", index=False)
    words = ["--group=plate", "--drop=by", "--output=o.csv"]
    assert main([*command, *words]) == 0
    assert list(read("o.csv")) == list(results)
    # Batches with predictions that were filled in; of new rows there are none.
    results.assign(repeats=1, mean=5.0, why="promising").to_csv(
        "results.csv", index=False
    )
    assert main([*command, *words]) == 0
    assert read("o.csv")[["repeats", "mean", "why", "yield"]].isna().all(axis=None)


def test_a_campaign_of_several_rounds(folder, capsys):
    rounds = []
    for number in range(3):
        assert main([*COMMAND, f"--output={number}.csv", "--report=r.html"]) == 0
        batch = read(f"{number}.csv")
        assert list(batch.columns[:5]) == [*NAMES, "repeats"]
        assert len(batch) == 6
        assert not ((batch["solvent"] == "ether") & (batch["temperature"] > 50)).any()
        rounds.append(batch[NAMES].assign(**{"yield": measured(batch)}))
        pd.concat(rounds).to_csv("results.csv", index=False)
    seen = pd.concat(rounds)
    assert not seen[NAMES].duplicated().any()
    assert set(seen["acid"]) <= set(ACIDS["id"])
    # The best acid is found.
    assert (rounds[-1]["acid"] == "004").sum() >= 3
    printed = capsys.readouterr().out
    assert "96 combinations, 12 of them measured" in printed
    assert "The search was complete. 96 combinations" in printed
    page = (folder / "r.html").read_text()
    assert "acid x solvent x temperature x base" in page
    assert " + ".join(map(str, rounds[-1][NAMES].iloc[0])) in page


def test_results_of_other_elements_train_the_model_and_are_not_chosen(folder, capsys):
    rows = [
        ("CCCC(=O)O", "DMF", 70.5, "strong", 90.0),
        ("001", "DMF", 20, "none", 10.0),
        ("002", "water", 40, "weak", "failed"),
        ("004", "water", 40, "weak", None),
        ("003", "water", 80, "none", 12.0),
        ("003", "DMF", 80, "none", "failed"),
        ("003", "DMF", 80, "none", 14.0),
    ]
    table = pd.DataFrame(rows, columns=[*NAMES, "yield"])
    table.to_csv("results.csv", index=False)
    command = [word for word in COMMAND if "batch-size" not in word]
    assert main([*command, "--batch-size=200", "--max-repeats=1"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"measurement failed: 1 \(002 \+ water \+ 40.*\)", printed)
    batch = read("next.csv")
    # 96 less 16 forbidden, and five that failed last, are in flight or measured.
    assert len(batch) == 96 - 16 - 5
    assert not batch[NAMES].duplicated().any()
    assert "1 in flight" in printed
    told = table.iloc[1:][NAMES].astype({"temperature": float})
    both = batch[NAMES].astype({"temperature": float}).merge(told)
    assert both.empty
    assert set(batch["temperature"]) == {20, 40, 60, 80}
    assert set(batch["base"]) == {"none", "weak"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--component=acid=1,2"], "'acid', as --component does"),
        (["--component=x=none.csv"], "There is no file none.csv"),
        (
            [f"--forbid=base={base}" for base in ("none", "weak")],
            "No combination is left: of 96",
        ),
        (
            ["--component=ligand=acids.csv"],
            r"'smiles' of acids.csv has \S+ in row 2 .* Pass --smiles ligand for mol",
        ),
        (["--forbid=acid=009"], "parts such as acid=A3.*'acid=009'"),
        (["--category=boron"], "--category to name some of the components"),
        (["--forbid=base=none,base=weak"], "each once.*'base=weak'. Repeat --forbid"),
    ],
)
def test_what_is_no_product_space_is_refused(folder, capsys, more, message):
    assert main([*COMMAND, *more]) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("001", "acetone", 20, "none", 1.0)], "'acetone' in column 'solvent'"),
        ([("no molecule", "DMF", 20, "none", 1.0)], "'acid' to have SMILES"),
        ([("001", None, 20, "none", 1.0)], "name its component 'solvent'"),
    ],
)
def test_results_of_unknown_elements_are_refused(folder, capsys, rows, message):
    pd.DataFrame(rows, columns=[*NAMES, "yield"]).to_csv("results.csv", index=False)
    assert main(COMMAND) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "next.csv").exists()


def products(*lists, words=(), code=0, size=40, output="next.csv"):
    """Run the command on lists alone; return the batch, if any."""
    lists = [f"--component={text}" for text in lists]
    more = [f"--batch-size={size}", "--max-repeats=1", f"--output={output}", *words]
    assert main(["suggest", *lists, "--num-bits=64", "--quiet", *more]) == code
    if code or output.endswith("xlsx"):
        return None if code else pd.read_excel(output, dtype=object)
    return pd.read_csv(output, dtype=str, keep_default_na=False)


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("1,4-dioxane,THF", "'1,4-dioxane'"),
        ("N,N-dimethylaniline,THF", "'N,N-dimethylaniline'"),
        ("3,3',5,5'-TMB,THF", '"5,5\'-TMB"'),
        ("(R,R)-BINAP,dppf", "'(R,R)-BINAP'"),
        ('THF,"1,4-dioxane', "'\"1'"),
        ("'1,4-dioxane',THF", '"\'1"'),
        ("THF, \u201c1,4-dioxane\u201d", "'\u201c1'"),
    ],
)
def test_a_name_is_not_cut_at_its_comma(text, cut, capsys):
    products(f"solvent={text}", "t=20,40", code=2)
    error = capsys.readouterr().err
    assert f"has {cut}, which may be one name" in error
    (remedy,) = re.findall("of the shell: '(.*)'. Or write a table", error)
    batch = products(remedy, "t=20,40")
    assert set(batch["solvent"]) == {"THF", "1,4-dioxane"}
    Path("list.csv").write_text('solvent\nTHF\n"1,4-dioxane"\n')
    pd.testing.assert_frame_equal(products("solvent=list.csv", "t=20,40"), batch)


@pytest.mark.parametrize("mark", [";", " | ", "\t"])
def test_elements_between_other_marks_are_not_one(mark, capsys):
    text = f"THF{mark}DMF"
    products(f"solvent={text}", "t=20,40", code=2)
    error = capsys.readouterr().err
    (remedy,) = re.findall("put it in quotation marks: '(.*)'.$", error.strip())
    assert {*products(remedy, "t=20,40")["solvent"]} == {text.replace("\t", " ")}
    assert {*products("solvent=THF,DMF", "t=20,40")["solvent"]} == {"THF", "DMF"}


@pytest.mark.parametrize(
    "names",
    [
        ["MeOH", "2-propanol", "L1"],
        ["Pd(OAc)2", "H2O", "Et3N.HCl"],
        [f"solvent {n}" for n in range(60)],
        ["3'-dAMP", "5'-AMP"],
    ],
)
def test_names_without_commas_need_no_quotation_marks(names, capsys):
    batch = products(f"x={','.join(names)}", "t=1", size=len(names))
    assert set(batch["x"]) == set(names)
    said = f"component 'x' has the elements {', '.join(names[:3])}"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("2026-01-31,2026-02-28", "which looks like a number or a date"),
        ("007,008,009", "'007', which looks like a number"),
        ("hot,cold,40", "'40', which looks like a number"),
        ("THF,DMF,thf", "'thf', which differs from 'THF' in case or spaces only"),
    ],
)
def test_values_are_checked_like_a_column_of_a_table(values, said, capsys):
    products(f"x={values}", "t=1,2", code=2)
    error = capsys.readouterr().err
    assert said in error
    (remedy,) = re.findall("Pass (--category x) if all", error)
    batch = products(f"x={values}", "t=1,2", words=remedy.split())
    assert set(batch["x"]) == {*values.split(",")}


@pytest.mark.parametrize("name", ["NA", "", "THF"])
def test_names_that_tables_read_as_empty_or_equal_are_refused(name, capsys):
    Path("list.csv").write_text(f"solvent\nTHF\n{name or 'THF'}\nDMF\n")
    for text in ("list.csv", f"THF,{name},DMF"):
        products(f"solvent={text}", "t=1,2", code=2)
        assert "none of them empty as None, NA, - and ? are" in capsys.readouterr().err


def test_no_molecule_by_the_name_none_is_refused(capsys):
    Path("list.csv").write_text("id,smiles\nNone,\nDBU,C1CCC2=NCCCN2CC1\n")
    products("base=list.csv", "t=1,2", words=["--smiles=base"], code=2)
    assert "has no id in row 2 " in capsys.readouterr().err


def test_a_result_with_a_misspelt_name_is_refused(capsys):
    Path("r.csv").write_text("x,t,reward\nthf,1,3.0\n")
    products("x=THF,DMF", "t=1,2", words=["--observations=r.csv"], code=2)
    assert "'thf', which differs from 'THF' in case" in capsys.readouterr().err


@pytest.mark.parametrize(
    "rule",
    [
        "base=2,6-lutidine,t=2",
        't=2, base="2,6-lutidine"',
        '"base=2,6-lutidine",t=2',
    ],
)
def test_a_forbidden_name_may_have_commas(rule):
    batch = products('base="2,6-lutidine",DBU', "t=1,2", words=["--forbid", rule])
    pairs = {("2,6-lutidine", "1"), ("DBU", "1"), ("DBU", "2")}
    assert {*zip(batch["base"], batch["t"], strict=True)} == pairs


LIGANDS = pd.DataFrame(
    {
        "id": ["none", "R", "S", "methanol"],
        "smiles": [None, "C[C@H](O)C(=O)O", "C[C@@H](O)C(=O)O", "CO"],
    }
)


@pytest.mark.parametrize("bits", [[], ["--bits"]])
def test_no_molecule_and_enantiomers_are_elements_of_their_own(bits, bandits, capsys):
    LIGANDS.to_csv("ligands.csv", index=False)
    lists, words = ("ligand=ligands.csv", "t=1,2,3"), ["--smiles", "ligand", *bits]
    batch = products(*lists, words=words)
    assert set(batch["ligand"]) == set(LIGANDS["id"])
    said = capsys.readouterr().out
    assert "elements of 'ligand' without a molecule: none." in said
    assert "features of an earlier one: S." in said
    rows = bandits[-1].arms.tables[0].bits().double()
    assert rows[0].sum() == 0
    difference = rows[2] - rows[1]
    assert difference.abs().sum() == 1
    assert rows[3].sum() > 0
    # The twin of the best is measured next, and "none" is not methanol.
    value = {"none": 1.0, "R": 9.0, "methanol": 4.0}
    told = batch[batch["ligand"] != "S"][["ligand", "t"]]
    told = told.assign(reward=told["ligand"].map(value) + told["t"].astype(float) / 10)
    told.to_csv("r.csv", index=False)
    words += ["--observations=r.csv", "--predictions=p.csv"]
    assert set(products(*lists, words=words, size=3)["ligand"]) == {"S"}
    mean = pd.read_csv("p.csv", keep_default_na=False).groupby("ligand")["mean"].mean()
    assert mean["none"] == pytest.approx(1.2, abs=0.3)
    assert mean["methanol"] == pytest.approx(4.2, abs=0.3)


def test_elements_with_equal_descriptors_are_distinguished(bandits, capsys):
    Path("list.csv").write_text("id,x,y\na,1,3\nb,1,3\nc,2,0\n")
    products("acid=list.csv", "t=1,2")
    said = "of 'acid' with the features of an earlier one: b."
    assert said in capsys.readouterr().out
    rows = bandits[-1].arms.tables[0]
    assert rows.tolist() == [[1.0, 3.0, 0.0], [1.0, 3.0, 1.0], [2.0, 0.0, 0.0]]


@pytest.mark.parametrize("words", [[], ["--per-measurement"]])
def test_numeric_ids_of_a_list_stay_numbers_in_a_workbook(words):
    table = pd.DataFrame({"Code": [35, 36], "x": [1.0, 2.0]})
    table.to_excel("list.xlsx", index=False)
    table.assign(Code=["035", "036"]).to_csv("text.csv", index=False)
    lists = "a=list.xlsx", "b=text.csv", "pH=6.5,7"
    batch = products(*lists, words=words, output="n.xlsx")
    cells = {name: {*batch[name]} for name in ("a", "b", "pH")}
    assert cells == {"a": {35, 36}, "b": {"035", "036"}, "pH": {6.5, 7}}
    told = batch[["a", "b", "pH"]].assign(reward=range(8))[:5]
    told.to_excel("r.xlsx", index=False)
    words = [*words, "--observations=r.xlsx"]
    again = products(*lists, words=words, output="other.xlsx")
    assert len(again) == 3
    assert told.merge(again, on=["a", "b", "pH"]).empty


def test_the_first_batch_has_the_format_of_the_lists():
    form = {"sep": ";", "decimal": ",", "encoding": "utf-8-sig"}
    table = pd.DataFrame({"Code": ["001", "002"], "pKa": [4.5, 3.25]})
    table.to_csv("list.csv", index=False, **form)
    lists = "acid=list.csv", "pH=6.5,7"
    products(*lists)
    text = Path("next.csv").read_bytes().decode("utf-8")
    assert text.startswith("\ufeffacid;pH;repeats;")
    batch = pd.read_csv("next.csv", sep=";", decimal=",", dtype={"acid": str})
    assert set(batch["acid"]) == {"001", "002"}
    assert set(batch["pH"]) == {6.5, 7.0}


def test_a_table_of_one_column_and_a_list_of_smiles_are_lists(bandits):
    """The numbers of one column are written as those of any table."""
    Path("t.csv").write_text("load\n20%\n\n60 %\n\n")
    Path("acids.csv").write_text("smiles\nCO\nCCO\n")
    batch = products("t=t.csv", "acid=acids.csv", words=["--smiles", "acid"])
    assert set(batch["t"]) == {"20", "60"}
    assert bandits[-1].arms.tables[0].tolist() == [[20.0], [60.0]]
    molecules = bandits[-1].arms.tables[1].bits()
    batch = products("t=20,60", "acid=CO,CCO", words=["--smiles", "acid"])
    assert set(batch["acid"]) == {"CO", "CCO"}
    assert bandits[-1].arms.tables[1].bits().equal(molecules)


def next_of(components, results, *words):
    """Return the batch after results of a table, and write these."""
    pd.DataFrame(results).to_csv("told.csv", index=False)
    words = [*(f"--component={each}" for each in components), *words]
    assert main(["suggest", *words, "--observations=told.csv", "--quiet"]) == 0
    return pd.read_csv("next.csv")


def test_results_may_name_a_molecule_by_smiles_and_round_a_number(capsys):
    Path("list.csv").write_text("alcohol\nCCO\nCCN\nc1ccccc1O\n")
    Path("ids.csv").write_text("id,smiles\nA,CCO\nB,CCN\n")
    told = {"alcohol": ["OCC", "CCN", "CCN"], "t": ["0.333333333", 0.5, 0.33333333]}
    told["reward"] = [1, 2, 3]
    numbers = "t=0.33333333333333,0.5"
    for name in ("list.csv", "ids.csv"):
        components = [f"alcohol={name}", numbers]
        batch = next_of(components, told, "--smiles=alcohol", "--batch-size=1")
        named = batch["alcohol"].replace({"A": "CCO", "B": "CCN"})[0]
        # Three of four or six products are done.
        done = ("CCO", 0.333), ("CCN", 0.5), ("CCN", 0.333)
        assert (named, round(batch["t"][0], 3)) not in done
    assert "only in the results" not in capsys.readouterr().out


def test_a_forbidden_product_that_was_measured_may_still_be_the_best(capsys):
    told = {"heat": [1, 2, 3, 1, 4, 4], "solvent": [*"aabbab"]}
    told["reward"] = [1, 2, 3, 1, 20, 21]
    components = "heat=1,2,3,4", "solvent=a,b"
    rows = [next_of(components, told, "--batch-size=1", "--forbid=heat=4")]
    rows.append(next_of(["heat=1,2,3", components[1]], told, "--batch-size=1"))
    said = " ".join(capsys.readouterr().out.split())
    assert all((row["heat"] < 4).all() for row in rows)
    assert said.count("Best measured so far: 4 + b, ") == 2
    assert "8 combinations, 6 of them measured" in said
    assert "6 combinations, 4 of them measured, 6 measurements in all" in said
    chances = re.findall(r"still unmeasured: (\d+) %", said)
    assert max(map(int, chances)) < 30
    held = re.findall("the best candidate is one of these [12] of .: 4 [+]", said)
    assert len(held) == 2


def test_a_failed_product_that_is_forbidden_is_not_counted_twice(capsys):
    told = {"heat": [20], "solvent": ["a"], "reward": ["failed"]}
    words = "--forbid=heat=20,solvent=a", "--batch-size=3"
    assert len(next_of(["heat=20,40", "solvent=a,b"], told, *words)) == 3
    assert "measurements of" not in capsys.readouterr().out


def test_a_list_without_a_header_is_refused_or_named(capsys):
    Path("t.csv").write_text("-78.5\n60\n80\n")
    Path("solvent.csv").write_text("THF\nDMF\nwater\n")
    words = ["suggest", "--component=t=t.csv", "--component=solvent=solvent.csv"]
    assert main(words) == 2
    said = "Expected t.csv to have a header, but its first row is '-78.5'. Write t"
    assert said in capsys.readouterr().err
    Path("t.csv").write_text("t\n20\n60\n80\n")
    assert main(words) == 0
    out = capsys.readouterr().out
    said = "Note: 'THF' is the header of solvent.csv, and no element of 'solvent'"
    assert said in out
    assert "'t' is the header" not in out


def test_a_list_is_not_replaced(folder, capsys):
    before = Path("solvents.csv").read_bytes()
    Path("link.csv").symlink_to("solvents.csv")
    for name in ("solvents.csv", "link.csv"):
        assert main([*COMMAND, f"--output={name}"]) == 2
        assert "is one of the tables" in capsys.readouterr().err
    assert Path("solvents.csv").read_bytes() == before


LISTS = ["--component=acid=B,C,D", "--component=t=20,40,60,80", "--batch-size=2"]


def told_of(acids, *more):
    """Return results of which the third one is the best."""
    rows = zip(acids, [20, 40, 60, 20, 60, 40], [1, 2, 9.5, 1, 4, 2.2], strict=True)
    return pd.DataFrame([*rows, *more], columns=["acid", "t", "reward"])


def test_the_best_is_measured_although_its_acid_is_not_in_the_list(capsys):
    told_of("AAAEEE").assign(impurity=1).to_csv("p.csv", index=False)
    words = ["suggest", *LISTS, "--observations=p.csv"]
    assert main([*words, "--drop=impurity"]) == 0
    assert "Best measured so far: A + 60" in capsys.readouterr().out
    assert {*pd.read_csv("next.csv")["acid"]} <= {*"BCD"}
    roles = ["--maximize=reward", "--limit=impurity <= 2", "--output=o.csv"]
    assert main([*words, *roles]) == 0
    assert "A + 60: reward 9." in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("goal", ["best_arm", "regret"])
def test_a_combination_that_failed_later_is_the_best_and_not_chosen(goal, capsys):
    told_of("BBBCCC", ("B", 60, "failed")).to_csv("p.csv", index=False)
    assert main(["suggest", *LISTS, "--observations=p.csv", f"--goal={goal}"]) == 0
    assert "Best measured so far: B + 60" in capsys.readouterr().out
    assert ("B", 60) not in [*pd.read_csv("next.csv")[["acid", "t"]].itertuples(False)]


@pytest.mark.parametrize("mark", [",", "."])
def test_a_mark_of_thousands_is_not_a_decimal_mark(mark, capsys):
    text = "acid;conc;reward\nB;1,000;9.5\nC;100;3.5\nD;10;2.5\nB;10;1.5\n"
    Path("p.csv").write_text(text.replace(",", mark))
    words = ["--component=acid=B,C,D", "--component=conc=1,10,100,1000"]
    words += ["--observations=p.csv", "--batch-size=2", "--quiet"]
    code = main(["suggest", *words])
    said = "".join(capsys.readouterr())
    assert code == 2 if mark == "," else "B + 1," in said

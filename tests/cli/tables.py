"""Two tidy tables, the ways to write them, and the command that reads them."""

import contextlib
import io
import re

import numpy as np
import pandas as pd

from botorch_bkb.__main__ import main


RNG = np.random.default_rng(0)
NUM_ARMS = 24
ARMS = pd.DataFrame(
    {
        "id": [f"{number:05d}" for number in range(390, 390 + NUM_ARMS)],
        "heat": np.round(RNG.uniform(20, 90, NUM_ARMS), 2),
        "load": RNG.integers(1, 60, NUM_ARMS) / 2,
        "solvent": RNG.permutation(["water", "EtOH", "MeCN"] * 8),
    }
)
RESULTS = pd.DataFrame(
    {"id": ["00390", "00398", "00398", "00401"], "reward": [41.25, 12.5, 13.75, np.nan]}
)


def csv(table, **options):
    return table.to_csv(index=False, **options).encode()


def excel(*tables, **options):
    book = io.BytesIO()
    with pd.ExcelWriter(book) as writer:
        for number, table in enumerate(tables):
            table.to_excel(writer, sheet_name=f"S{number}", index=False, **options)
    return ".xlsx", book.getvalue()


def parquet(table):
    return ".parquet", table.to_parquet()


def cell(column, value, row=5, table=ARMS):
    """Return a table with another value in one cell."""
    table = table.astype("object")
    table.loc[row, column] = value
    return table


def suggest(folder, arms, results, *words):
    """Return the exit code, what was said, and the batch.

    Tables are the bytes of a CSV file, or a suffix and the bytes of such a file.
    """
    paths = []
    for name, content in (("arms", arms), ("results", results)):
        suffix, data = content if isinstance(content, tuple) else (".csv", content)
        paths.append(folder / f"{name}{suffix}")
        paths[-1].write_bytes(data)
    output = folder / "next.csv"
    options = ["--observations", paths[1], "--output", output, "--batch-size", 5]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main([str(word) for word in ("suggest", paths[0], *options, *words)])
    said = said.getvalue()
    assert code in (0, 2)
    assert output.is_file() == (code == 0)
    if code == 2:
        assert said.count("botorch-bkb: error: ") == 1
        assert said.splitlines()[-1].startswith("botorch-bkb: error: ")
        return code, said, None
    separator = output.read_text("utf-8-sig")[len("id")]  # as of the candidates
    has_commas = re.search(r"arms\.\S+: is read with .*',' before decimals", said)
    form = {"sep": separator, "decimal": "," if has_commas else "."}
    return code, said, pd.read_csv(output, dtype={"id": "str"}, **form)


def next_batch(arms, results, *words, size=5, code=0):
    """Write two tables in this folder, run `suggest`, and return the batch, if any."""
    arms.to_csv("arms.csv", index=False)
    options = ["suggest", "arms.csv", f"--batch-size={size}"]
    if results is not None:
        results.to_csv("results.csv", index=False)
        options.append("--observations=results.csv")
    assert main([*options, *map(str, words)]) == code
    return pd.read_csv("next.csv", dtype={"id": "str"}) if code == 0 else None

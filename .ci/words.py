"""Fail where prose has a phrase that our glossary replaces."""

import io
import json
import re
import sys
import tokenize
from pathlib import Path


# What not to write, and what to write. A space matches any white space.
PHRASES = r"""
what (was|were) told|told pulls? = observation, observed
(try|tries|tried|takes?) an? (arm|candidate) = evaluate an arm, measure a candidate
(what|which) is out\b = pending evaluation
(tells?|says?) nothing of|tells? of each other = uninformative, similarity, correlation
what (is|was) (known|believed)|\bbeliefs?\b|what it knows = posterior, surrogate model
that may be (pulled|chosen)|(arms?|candidates?) that left = available arm, retired arm
scaled inside|in (your|their) units = normalized features, original scale
(?<![\w-])(?!(standard|squared)\b)[\w.]+ deviations?\b = standard deviation
(it|bandit) thinks = recommended arm, incumbent
memory (does|do) not hold = larger than memory
noise of [0-9.]+ ?% = noise with ... of the standard deviation of the rewards
\b(anew|afresh)\b = resample, rebuild, update, again
the last word = up to floating-point rounding
pass(es|ed)? over all (the )?arms = cost O(A m)
to know what (that|it) is worth = baseline
where nothing is (given|named) = default
\bin the mean\b = mean over 5 seeds, standard error
\b(and|they) informs?\b|keeps informing|informs? as before = still trains the model
(which|that) there is not = which does not exist
(?<!there.)\bis no (file|table|number|feature|batch|molecule|arm)\b = is not a
\bwho (is|does|has) not\b|nobody (asked|asks)|speaks? against = name the subject
"""
FILES = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.rst"),
    *("tutorials/*.ipynb", "botorch_bkb/**/*.py", "botorch_bkb/**/*.html"),
)
KINDS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}


def prose_of(path: Path) -> str:
    """Return the text of a file, line by line, with code and quotes as blanks."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [c for c in json.loads(text)["cells"] if c["cell_type"] == "markdown"]
        return "\n".join("".join(cell["source"]) for cell in cells)
    if path.suffix != ".py":
        return text
    kept = [[" "] * len(line) for line in text.splitlines()]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        lines = token.string.splitlines() if token.type in KINDS else []
        for number, part in enumerate(lines):
            start = token.start[1] if number == 0 else 0
            row = kept[token.start[0] - 1 + number]
            row[start : start + len(part)] = re.sub(r"[\"'#]", " ", part)
    return "\n".join(map("".join, kept))


found = []
for path in (path for glob in FILES for path in sorted(Path().glob(glob))):
    text = prose_of(path)
    for wrong, _, right in (
        line.rpartition(" = ") for line in PHRASES.split("\n")[1:-1]
    ):
        for match in re.finditer(wrong.replace(" ", r"\s+"), text, re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            found.append(
                f"{path}:{line}: {' '.join(match[0].split())!r}, write: {right}"
            )
sys.exit("\n".join(found))

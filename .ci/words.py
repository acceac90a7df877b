"""Fail where prose has a phrase that our glossary replaces."""

import io
import json
import re
import sys
import tokenize
from pathlib import Path


# What not to write, and what to write. A space matches any white space.
PHRASES = r"""
what (was|were) told|told pulls? = observation
(try|tries|tried|takes?) an? (arm|candidate) = evaluate an arm, measure a candidate
(what|which) is out\b = pending evaluation
(tells?|says?) nothing of|tells? of each other = uninformative, similarity
what (is|was) (known|believed)|(?<!normal.)\bbeliefs?\b = posterior, surrogate model
that may be (pulled|chosen)|(arms?|candidates?) that left = available arm, retired arm
scaled inside|in (your|their) units = normalized features, original scale
(?<![\w-])(?!(standard|squared)\b)[\w.]+ deviations?\b = standard deviation
(it|bandit) thinks = recommended arm, incumbent
memory (does|do) not hold = larger than memory
noise of [0-9.]+ ?% = noise with ... of the standard deviation of the rewards
\b(anew|afresh)\b = resample, rebuild, update, again
the last word = up to floating-point rounding
pass(es|ed)? over all (the )?arms = cost O(A m)
to know what (that|it) is worth|speaks? against = baseline, checks
where nothing is (given|named)|nobody (asked|asks) = default
\bin the mean\b = mean over 5 seeds, standard error
\b(and|they) informs?\b|keeps informing|informs? as before = still trains the model
(which|that) there is not|who (is|has) not = which does not exist
(?<!there.)\bis no (file|table|number|feature|batch|molecule|arm)\b = is not a
"""
PROSE = ("*.md", "docs/**/*.rst", "tutorials/*.ipynb", "botorch_bkb/**/*.py")
KINDS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}


def prose_of(path: Path) -> str:
    """Return the lines of a file; code is marks, and quotes are blanks."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [c for c in json.loads(text)["cells"] if c["cell_type"] == "markdown"]
        return "\n".join("".join(cell["source"]) for cell in cells)
    kept = [list(re.sub(r"\S", "|", line)) for line in text.splitlines()]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        for n, part in enumerate(token.string.splitlines() * (token.type in KINDS)):
            start = 0 if n else token.start[1]
            words = re.sub(r"[\"'#]", " ", part)
            kept[token.start[0] - 1 + n][start : start + len(part)] = words
    return "\n".join(map("".join, kept))


found = []
for path in (path for pattern in PROSE for path in sorted(Path().glob(pattern))):
    text = path.read_text() if path.suffix in (".md", ".rst") else prose_of(path)
    for wrong, _, right in (p.rpartition(" = ") for p in PHRASES.strip().split("\n")):
        for match in re.finditer(wrong.replace(" ", r"\s+"), text, re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{path}:{line}: not {match[0]!r} but {right!r}")
sys.exit("\n".join(found) or None)

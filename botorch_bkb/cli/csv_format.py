"""How a CSV file is written: encoding, separator and decimal mark, found from it."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from botorch.exceptions.errors import InputDataError
from typing_extensions import override


# That much of a file is looked at, or more until there are some lines; the rest has to
# agree where it is read.
SAMPLE_BYTES = 2**16
MIN_LINES = 20
MAX_MARKED_LINES = 1_000
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
ENCODINGS = {"utf-8": "UTF-8", "utf-8-sig": "UTF-8", "cp1252": "Windows-1252 (Latin-1)"}
OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
# Of programs that save tables in files of their own kind.
SIGNATURES = {
    b"PAR1": "a Parquet file. Name it *.parquet",
    b"PK\x03\x04": "a workbook or an archive. Name it *.xlsx if it is of Excel",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook. Save it as *.xlsx or as CSV",
}
# By the mark before decimals: 1.234, where it may stand between thousands too; and 1.5,
# 1.5e3, 1,234.5, 1,234,567, where it may not.
NUMBERS = {
    mark: (
        re.compile(rf"[+-]?[1-9]\d{{0,2}}{m}\d{{3}}"),
        re.compile(
            rf"[+-]?(\d*{m}\d+([eE][+-]?\d+)?|\d{{1,3}}(({g}\d{{3}})+{m}\d+"
            rf"|({g}\d{{3}}){{2,}}))"
        ),
    )
    for mark, m, g in ((".", r"\.", ","), (",", ",", r"\."))
}


@dataclass(frozen=True)
class CsvFormat:
    """How a CSV file is written.

    Attributes:
        separator: The character between fields.
        decimal: ``"."`` or ``","``.
        encoding: Python's name of it.
        num_skipped: The number of lines above the header: blank ones, or ``sep=;``.
    """

    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    num_skipped: int = 0

    @override
    def __str__(self) -> str:
        separator = SEPARATORS.get(self.separator, repr(self.separator))
        decimal = "commas" if self.decimal == "," else "points"
        encoding = ENCODINGS.get(self.encoding, self.encoding.upper())
        return f"{separator} between fields, decimal {decimal}, {encoding}"

    @property
    def is_plain(self) -> bool:
        """Whether the format is what most programs write."""
        is_utf8 = self.encoding.startswith("utf-8")
        return (self.separator, self.decimal, is_utf8) == (",", ".", True)


def find_csv_format(
    path: Path,
    text_columns: Collection[str] = (),
    *,
    separator: str | None = None,
    decimal: str | None = None,
) -> CsvFormat:
    """Find out how a CSV file is written, from its first 64 KiB.

    The encoding is UTF-16 by its mark or its zeros, UTF-8 if it can be, else
    Windows-1252. The separator is the one by which most rows have as many fields as the
    header. The decimal mark is a comma where numbers are such as 1,5 and none is such
    as 1.5.

    Args:
        path: The file, perhaps compressed.
        text_columns: Columns whose numbers are names.
        separator: The separator, if it is known; of no meaning to a file whose header
            lacks it.
        decimal: The decimal mark, if it is known.

    Raises:
        InputDataError: If the file is of another kind by its first bytes, or numbers
            such as 1,234 leave open what their mark means.
    """
    head, is_whole = _read_head(path)
    for signature, kind in SIGNATURES.items():
        if head.startswith(signature):
            raise InputDataError(f"{path} is named as a CSV file, but is {kind}.")
    encoding = _find_encoding(head)
    text = codecs.getincrementaldecoder(encoding)(errors="replace").decode(head)
    lines = io.StringIO(text.removeprefix("\ufeff"), newline="").readlines()
    if not is_whole and len(lines) > 1:
        lines.pop()  # cut somewhere
    num_skipped, hint = 0, re.fullmatch(r'"?sep=(.)"?\s*', "".join(lines[:1]))
    if hint is not None:
        separator, num_skipped = separator or hint[1], 1
    for line in lines[num_skipped:]:
        if line.strip(",;|\t\r\n "):
            break
        num_skipped += 1
    lines = lines[num_skipped:]
    if separator is not None and separator not in "".join(lines[:1]):
        separator = None
    try:
        separator = separator or _find_separator(lines)
        if decimal is None and lines:
            if separator != "," and not is_whole:
                lines += _lines_with_marks(path, encoding)
            decimal = _find_decimal(path, lines, separator, text_columns)
    except csv.Error:
        pass  # no table: who reads it will say so
    return CsvFormat(separator or ",", decimal or ".", encoding, num_skipped)


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """Open a file, perhaps compressed, for its bytes."""
    with OPENERS.get(path.suffix.lower(), open)(path, "rb") as file:
        yield cast(BinaryIO, file)


def decimal_marks(numbers: Iterable[str]) -> tuple[set[str], dict[str, str]]:
    """Return what texts tell of the mark before decimals.

    Args:
        numbers: Texts; those that are no numbers do not count.

    Returns:
        The marks that numbers such as 1.5 or 1,234.5 have for certain; and, by their
        mark, an example of those such as 1.234, which may be thousands.
    """
    certain: set[str] = set()
    uncertain: dict[str, str] = {}
    for text in numbers:
        for mark, (may_group, has_mark) in NUMBERS.items():
            if may_group.fullmatch(text):
                uncertain.setdefault(mark, text)
            elif has_mark.fullmatch(text):
                certain.add(mark)
    return certain, uncertain


def _read_head(path: Path) -> tuple[bytes, bool]:
    """Return the first bytes, and whether they are all."""
    head = b""
    with open_bytes(path) as file:
        while len(head) < SAMPLE_BYTES or head.count(b"\n") < MIN_LINES:
            more = file.read(SAMPLE_BYTES)
            if not more:
                return head, True
            head += more
        return head, False


def _find_encoding(head: bytes) -> str:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if head.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    for start, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        if head[start::2].count(0) > len(head) / 4:
            return encoding
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def _split(lines: Iterable[str], separator: str) -> list[list[str]]:
    rows = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    return [[field.strip() for field in row] for row in rows if any(row)]


def _find_separator(lines: list[str]) -> str:
    best, found = (0.0, 1), ","
    for separator in SEPARATORS:
        header, *sizes = [len(row) for row in _split(lines, separator)] or [1]
        share = sum(size == header for size in sizes) / max(1, len(sizes))
        if header > 1 and (share, header) > best:
            best, found = (share, header), separator
    return found


def _find_decimal(
    path: Path, lines: list[str], separator: str, text_columns: Collection[str]
) -> str:
    names, *rows = _split(lines, separator)
    is_text = [name in text_columns for name in names]
    certain, uncertain = decimal_marks(
        field.rstrip("% ")
        for row in rows
        for field, skip in zip(row, is_text, strict=False)
        if not skip and ("," in field or "." in field)
    )
    # Where commas separate fields, points do not separate thousands.
    points = None if separator == "," else uncertain.get(".")
    if len(certain) == 1:
        return certain.pop()
    # Of two minds: what is no number by the point is seen where it is read.
    found = points if certain else uncertain.get(",") or points
    if found is not None:
        raise InputDataError(
            f"{path} has numbers such as {found}, which is one thing with decimal "
            "commas and another with decimal points. Pass --decimal , or --decimal . "
            "(then write thousands without a mark)."
        )
    return "."


def _lines_with_marks(path: Path, encoding: str) -> list[str]:
    """Return the first lines with digits around a comma or a point."""
    mark = re.compile(r"\d[.,]\d")
    with (
        open_bytes(path) as file,
        io.TextIOWrapper(file, encoding, errors="replace", newline="") as lines,
    ):
        next(lines)
        return list(islice(filter(mark.search, lines), MAX_MARKED_LINES))

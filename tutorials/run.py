"""Execute every tutorial: ``python tutorials/run.py``, with ``--write`` to store outputs.

With SMOKE_TEST in the environment the notebooks choose small sizes.
"""

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient


TIME_LIMIT = 1_800  # seconds a cell, of which slow machines take minutes


def main() -> None:
    folder = Path(__file__).parent
    for path in sorted(folder.glob("*.ipynb")):
        start = time.perf_counter()
        notebook = nbformat.read(path, as_version=4)
        client = NotebookClient(
            notebook,
            timeout=TIME_LIMIT,
            record_timing=False,
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
        )
        client.execute()
        if "--write" in sys.argv:
            nbformat.write(notebook, path)
        sys.stdout.write(f"{path.name}: {time.perf_counter() - start:.0f} s\n")


if __name__ == "__main__":
    main()

"""A campaign on the page, in Chromium or Chrome. Skipped if neither is installed."""

import os
import shutil
import socket
import subprocess
import sys
import time
from urllib.parse import urlsplit
from urllib.request import urlopen

import pandas as pd
import psutil
import pytest
from playwright.sync_api import sync_playwright

from tests.cli.tables import ARMS


MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
FOUND = list(filter(None, map(shutil.which, ("chromium", "google-chrome", MAC))))
SECONDS = 300


@pytest.fixture
def server(tmp_path):
    """Return the page's address while it is served; it may not leave a file."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path / "temporary"
    folder.mkdir()
    settings = {"STREAMLIT_SERVER_PORT": f"{port}", "STREAMLIT_SERVER_HEADLESS": "true"}
    settings |= {"OMP_NUM_THREADS": "1", "TMPDIR": f"{folder}"}
    command = [sys.executable, "-m", "botorch_bkb", "app"]
    with (
        open("said.txt", "w") as said,
        subprocess.Popen(
            command, env=os.environ | settings, stdout=said, stderr=said
        ) as process,
    ):
        try:
            end = time.monotonic() + SECONDS
            while not is_served(port):
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.2)
            opened = psutil.Process(process.pid).net_connections()
            addresses = {each.laddr.ip for each in opened if each.status == "LISTEN"}
            assert addresses == {"127.0.0.1"}
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(SECONDS)
    assert list(folder.iterdir()) == []


def is_served(port):
    try:
        with urlopen(f"http://127.0.0.1:{port}/_stcore/health") as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture
def page(server):
    """Return the page in a browser, which may load nothing from elsewhere."""
    with sync_playwright() as playwright:
        # `.ci/run` must not skip these tests.
        path = FOUND[0] if FOUND else "chromium"
        with playwright.chromium.launch(executable_path=path) as browser:
            page = browser.new_page()
            page.set_default_timeout(1_000 * SECONDS)
            hosts = set()
            page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
            page.goto(server)
            yield page
            assert hosts - {""} == {urlsplit(server).netloc}


def suggest(page, name):
    """Press the button, save the batch, and return it; the report is shown."""
    page.get_by_role("button", name="Suggest the next experiments").click()
    with page.expect_download() as download:
        page.get_by_role("button", name=f"Save {name}").click()
    assert download.value.suggested_filename == name
    download.value.save_as(name)
    title = "Next batch for candidates.csv"
    page.frame_locator("iframe").get_by_role("heading", name=title).wait_for()
    return pd.read_csv(name, dtype={"id": "str"})


@pytest.mark.skipif(not (FOUND or "NEEDS_BROWSER" in os.environ), reason="no browser")
def test_a_campaign_in_the_browser(page):
    ARMS.to_csv("candidates.csv", index=False)
    candidates, results = (page.locator("input[type=file]").nth(n) for n in range(2))
    candidates.set_input_files("candidates.csv")
    name = page.get_by_label("Columns of results: larger is better")
    new = page.get_by_text("Add: yield")
    for _ in range(2 * SECONDS):  # the page may still move
        if new.is_visible():
            break
        name.fill("")
        name.fill("yield")
        page.wait_for_timeout(500)
    new.click()
    size = page.get_by_label("How many experiments")
    size.click()  # which closes the list of names
    size.fill("6")
    first = suggest(page, "batch_1.csv")
    assert len(first) == 6
    assert set(first["id"]) <= set(ARMS["id"])
    assert first["heat"].notna().all()

    first["yield"] = first["heat"] + first["load"]
    first.to_csv("batch_1.csv", index=False)
    results.set_input_files("batch_1.csv")
    page.get_by_role("tab", name="batch_1.csv").wait_for()
    second = suggest(page, "batch_2.csv")
    assert len(second) == 6
    assert second["yield"].isna().all()
    assert not set(second["id"]) & set(first["id"])
    page.get_by_text("24 candidates, 6 of them measured").first.wait_for()

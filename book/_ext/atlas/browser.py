"""Find a Chromium for the site tests: an installed one, else Playwright's own. `python book/_ext browser` prints where."""

import os
import shutil
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
HOW = "no Chromium was found: install one, set CHROMIUM to its path, or run: .venv/bin/python -m playwright install chromium"


def find() -> str | None:
    if chosen := os.environ.get("CHROMIUM"):
        return chosen
    installed = next(filter(None, map(shutil.which, NAMES)), None)
    if installed or MAC.exists():
        return installed or str(MAC)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


def main(arguments: list[str]) -> int:
    found = find()
    print(found or HOW)
    return 0 if found else 1

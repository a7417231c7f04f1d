"""What a visitor does on the page, and what the page then shows."""

import base64
import time
from pathlib import Path

import soundfile

from recognizers import RATE, noise

WAIT = 60_000
"""Milliseconds. Only a failure waits so long."""


def wait_for(page, expression):
    """Waits until an expression of the page is true.

    Playwright's own way polls inside of the page by eval, which our policy forbids.
    """
    deadline = time.monotonic() + WAIT / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"{expression} does not become true"
        page.wait_for_timeout(50)


def wait_for_state(page, state):
    wait_for(page, f"document.body.dataset.state === '{state}'")


def choose_settings(page, **values):
    """Sets fields of the dialog as a visitor does."""
    page.click("#settings-button")
    for name, value in values.items():
        field = page.locator(f"#settings [name={name}]")
        if isinstance(value, bool):
            field.set_checked(value)
        else:
            field.select_option(value)
    page.click("#settings .primary")


def drop(page, path):
    """Drops a file onto the page."""
    data = page.evaluate_handle(
        """([bytes, name]) => {
          const transfer = new DataTransfer();
          const content = Uint8Array.from(atob(bytes), (letter) => letter.charCodeAt(0));
          transfer.items.add(new File([content], name));
          return transfer;
        }""",
        [base64.b64encode(path.read_bytes()).decode(), path.name],
    )
    page.dispatch_event("#sheet", "drop", {"dataTransfer": data})


def text_of(page):
    """The words of all segments, and of the open one."""
    return " ".join(page.locator("#segments .word, #open .word").all_inner_texts())


def saved(page, name):
    """What a download button gives, and the name of its file."""
    with page.expect_download() as download:
        page.click(f"[data-format={name}]")
    with open(download.value.path(), encoding="utf-8", newline="") as file:
        return file.read(), download.value.suggested_filename


def wait_for_segments(page, least):
    """Waits until so many segments are over."""
    wait_for(page, f"document.querySelectorAll('#segments .segment').length >= {least}")


def wait_for_open_words(page, most):
    """Waits until the open segment has more words."""
    wait_for(page, f"document.querySelectorAll('#open .word').length > {most}")


def noise_file(folder, *, seconds, seed, rate=RATE, name="spoken.wav", **options) -> Path:
    """Writes a recording in which the tiny recognizer hears words."""
    path = folder / name
    soundfile.write(path, noise(seconds * rate / RATE, seed), rate, **options)
    return path

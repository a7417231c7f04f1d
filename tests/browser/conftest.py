"""A real Chromium, and a real server for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile

from chromium import NOT_RUN, OPTIONS, chromium_path
from page_server import Server
from recognizers import RATE, noise, tiny_recognizer
from servers import PAUSING

collect_ignore = ["conftest.py"]  # there are two, which have no doctests


def _give_up(reason: str) -> None:
    pytest.skip(f"{NOT_RUN}: {reason}")


@pytest.fixture(scope="session")
def recording(tmp_path_factory) -> Path:
    """What the microphone hears: three seconds, once."""
    path = tmp_path_factory.mktemp("sound") / "speech.wav"
    soundfile.write(path, noise(3.0, seed=7), RATE)
    return path


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "model"
    tiny_recognizer().save(folder)
    return folder


@pytest.fixture(scope="session")
def pausing_server(tmp_path_factory) -> Iterator[Server]:
    """A server whose model hears nothing in silence, so that pauses end its segments."""
    folder = tmp_path_factory.mktemp("pausing")
    tiny_recognizer(PAUSING).save(folder / "model")
    with Server(folder / "model", keep=folder) as running:
        yield running


@pytest.fixture(scope="module")
def playwright():
    """It runs an event loop, which tests of other modules in the same process must not meet."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _give_up("there is no playwright; `pip install playwright` brings it")
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="module")
def browser(playwright, recording):
    """Chromium whose microphone hears the recording."""
    path = chromium_path()
    if path is None:
        _give_up("there is no Chromium; `apt-get install chromium` as root brings it")
    running = playwright.chromium.launch(
        executable_path=path,
        args=[
            *OPTIONS,
            "--use-fake-device-for-media-stream",
            f"--use-file-for-fake-audio-capture={recording}%noloop",
            "--host-resolver-rules=MAP midge.test 127.0.0.1",
        ],
    )
    yield running
    running.close()


@pytest.fixture(scope="session")
def server(model, tmp_path_factory) -> Iterator[Server]:
    """A server that most tests share; it keeps what it hears."""
    with Server(model, keep=tmp_path_factory.mktemp("kept")) as running:
        yield running


@pytest.fixture
def open_page(browser):
    """Opens the page of a server; at the end, no script may have failed, and nothing outside of
    the server may have been asked for.
    """
    opened, faults = [], []

    def open_(server: Server, *, query: str = "", host: str = "127.0.0.1", **options):
        options.setdefault("permissions", ["microphone"])
        context = browser.new_context(**options)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: faults.extend(_foreign(request.url, server, host)))
        page.goto(f"http://{host}:{server.port}/{query}")
        opened.append(context)
        return page

    yield open_
    for context in opened:
        context.close()
    assert faults == []


def _foreign(url: str, server: Server, host: str) -> list[str]:
    is_own = url.startswith((f"http://{host}:{server.port}/", "blob:"))
    return [] if is_own else [f"asked for {url}"]

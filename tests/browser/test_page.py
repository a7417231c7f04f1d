"""The page in a real browser, against a real server: what is heard, and what goes wrong."""

import json
import signal

import pytest
import soundfile
from websockets.sync.client import connect

from midge.cli import main
from midge.decoding.endpointing import EndpointConfig
from page_actions import (
    WAIT,
    choose_settings,
    drop,
    noise_file,
    saved,
    text_of,
    wait_for,
    wait_for_open_words,
    wait_for_segments,
    wait_for_state,
)
from page_server import Server, decoded
from recognizers import RATE
from servers import with_pauses

pytestmark = pytest.mark.slow


def transcribe(capsys, model, path, *options):
    """What `midge transcribe` writes."""
    capsys.readouterr()
    assert main(["transcribe", str(model), str(path), *options]) == 0
    return capsys.readouterr().out


def test_words_appear_while_the_microphone_hears(server, open_page):
    page = open_page(server)
    num_before = len(server.heard())
    choose_settings(page, hasEndpoints=False)
    page.click("#main")
    wait_for_open_words(page, 1)
    assert page.evaluate("document.body.dataset.state") == "live", "words before the end"
    early = page.locator("#open .word").count()
    wait_for_open_words(page, early)
    wait_for(page, "document.getElementById('position').textContent >= '0:03'")
    page.click("#main")
    wait_for_state(page, "idle")
    assert page.locator("#open .word").count() == 0
    (heard,) = server.heard()[num_before:]
    assert soundfile.info(heard).samplerate == 16000
    assert text_of(page) == decoded(server.model, heard) != ""


def test_the_microphone_is_taken_as_it_is(server, open_page):
    page = open_page(server)
    page.evaluate(
        """() => {
          const open = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
          navigator.mediaDevices.getUserMedia = async (wanted) => {
            const media = await open(wanted);
            window.taken = media.getAudioTracks()[0].getSettings();
            return media;
          };
        }"""
    )
    page.click("#main")
    wait_for_state(page, "live")
    taken = page.evaluate("window.taken")
    assert not taken["echoCancellation"]
    assert not taken["noiseSuppression"]
    assert not taken["autoGainControl"]
    page.click("#main")
    wait_for_state(page, "idle")


@pytest.mark.parametrize(
    ("name", "rate", "is_fast"),
    [
        ("plain.wav", RATE, False),
        ("other.wav", 16000, True),
        ("music.flac", 44100, True),
        ("deep.flac", 16000, True),
    ],
)
def test_a_dropped_file_equals_transcribe(
    pausing_server, open_page, tmp_path, capsys, name, rate, is_fast
):
    """With the settings of the page and the options of the command as they are."""
    server, path = pausing_server, tmp_path / name
    subtype = "PCM_24" if name == "deep.flac" else "PCM_16"
    soundfile.write(path, with_pauses(rate), rate, subtype=subtype)
    page = open_page(server)
    if is_fast:
        choose_settings(page, isFast=True)
    drop(page, path)
    wait_for_segments(page, 3)
    wait_for_state(page, "idle")
    assert text_of(page) + "\n" == transcribe(capsys, server.model, path) != "\n"
    assert page.locator("#segments .segment").count() >= 3, "pauses end segments"
    assert page.locator("#readings li").count() >= 1, "alternatives have come"
    heard, _ = soundfile.read(server.heard()[-1], dtype="float32")
    assert (heard == soundfile.read(path, dtype="float32")[0]).all(), "sample by sample"


def test_without_endpoints_the_text_is_that_without_endpoints(
    pausing_server, open_page, tmp_path, capsys
):
    path = tmp_path / "speech.wav"
    soundfile.write(path, with_pauses(), RATE)
    page = open_page(pausing_server)
    choose_settings(page, hasEndpoints=False, isFast=True)
    drop(page, path)
    wait_for_segments(page, 1)
    wait_for_state(page, "idle")
    whole = transcribe(capsys, pausing_server.model, path, "--no-endpoints")
    assert text_of(page) + "\n" == whole
    assert whole != transcribe(capsys, pausing_server.model, path)


def test_a_chosen_file_in_segments(server, open_page, tmp_path):
    path = noise_file(tmp_path, seconds=4.0, seed=5)
    page = open_page(server)
    page.evaluate("localStorage.setItem('midge-settings', JSON.stringify({pause: 0.3}))")
    page.reload()
    with page.expect_file_chooser() as chooser:
        page.click("#choose")
    chooser.value.set_files(path)
    wait_for_state(page, "live")
    wait_for_state(page, "idle")
    rules = EndpointConfig(pause=0.3)
    assert text_of(page) == decoded(server.model, path, rules) != ""


def test_downloads_equal_transcribe(server, open_page, tmp_path, capsys):
    path = noise_file(tmp_path, seconds=9.0, seed=4, name="some talk.wav")
    page = open_page(server)
    choose_settings(page, hasEndpoints=False, isFast=True, numBest="3")
    drop(page, path)
    wait_for_segments(page, 1)
    wait_for_state(page, "idle")
    for name, format_name in (("txt", "text"), ("srt", "srt")):
        expected = transcribe(capsys, server.model, path, "--format", format_name)
        assert saved(page, name) == (expected, f"some talk.{name}")
    expected = json.loads(transcribe(capsys, server.model, path, "--format", "json"))
    found, filename = saved(page, "json")
    found = json.loads(found)
    assert filename == "some talk.json" and found["recording"] == path.name
    assert found["text"] == expected["text"] and found["seconds"] == expected["seconds"]
    for word, other in zip(found["words"], expected["words"], strict=True):
        assert 0 <= word.pop("confidence") <= 1 and other.pop("confidence") is None
        assert word == other
    (segment,) = found["segments"]
    assert segment["is_final"] and 1 <= len(segment["alternatives"]) <= 3
    shown = page.locator("#readings li").all_inner_texts()
    assert len(shown) == len(segment["alternatives"])


def test_copying(server, open_page, tmp_path):
    path = noise_file(tmp_path, seconds=1.0, seed=6)
    page = open_page(server, permissions=["clipboard-read", "clipboard-write"])
    assert page.is_disabled("#copy") and page.is_disabled("#clear")
    choose_settings(page, isFast=True)
    drop(page, path)
    wait_for_segments(page, 1)
    wait_for_state(page, "idle")
    said = text_of(page)
    page.click("#copy")
    wait_for(page, "document.getElementById('copy').textContent === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == said + "\n"
    page.click("#clear")
    assert text_of(page) == "" and page.is_visible("#empty") and page.is_disabled("#copy")


def test_a_full_server_says_so(model, open_page, tmp_path):
    with Server(model, keep=tmp_path, options=("--max-streams", "1")) as server:
        page = open_page(server)
        with connect(f"ws://127.0.0.1:{server.port}/stream") as other:
            other.send(json.dumps({"command": "start"}))
            assert json.loads(other.recv())["event"] == "ready"
            page.click("#main")
            page.wait_for_selector("text=The server is full", timeout=WAIT)
            assert page.inner_text("#status") == "Ready"
        # A place is free again: the same button works, and the message is gone.
        page.wait_for_timeout(500)
        page.click("#main")
        wait_for_state(page, "live")
        assert page.locator("#messages .message").count() == 0
        page.click("#main")
        wait_for_state(page, "idle")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_in_the_middle_loses_nothing(model, open_page, tmp_path, capsys, how):
    path = noise_file(tmp_path, seconds=6.0, seed=8, name="long.flac")
    with Server(model, keep=tmp_path) as server:
        page = open_page(server)
        choose_settings(page, hasEndpoints=False)
        drop(page, path)
        wait_for_open_words(page, 2)
        before = text_of(page).split()
        server.stop(how)
        page.wait_for_selector("text=No connection to the server", timeout=WAIT)
        wait_for_state(page, "waiting")
        assert text_of(page).split()[: len(before) - 1] == before[:-1], "what was said is kept"
        server.start()
        wait_for_state(page, "idle")
        assert page.locator("#messages .message").count() == 0
        assert text_of(page) + "\n" == transcribe(capsys, server.model, path)


def test_giving_up_keeps_the_words(model, open_page, tmp_path):
    with Server(model, keep=tmp_path) as server:
        page = open_page(server)
        page.click("#main")
        wait_for_open_words(page, 1)
        server.stop(signal.SIGKILL)
        wait_for_state(page, "waiting")
        said = text_of(page)
        page.click("#main")  # no more sound; it goes on trying to send what there is
        page.wait_for_timeout(800)
        assert page.evaluate("document.body.dataset.state") != "idle"
        page.click("#main")  # it stops trying
        wait_for_state(page, "idle")
        assert text_of(page) == said != ""
        assert page.locator("#segments .interrupted").count() == 1


def test_two_tabs_at_once(server, open_page, tmp_path):
    first = noise_file(tmp_path, seconds=6.0, seed=10, name="first.wav")
    second = noise_file(tmp_path, seconds=6.0, seed=11, name="second.wav")
    pages = [open_page(server), open_page(server)]
    for page in pages:
        choose_settings(page, hasEndpoints=False)
    for page, path in zip(pages, (first, second), strict=True):
        drop(page, path)
    for page, path in zip(pages, (first, second), strict=True):
        wait_for_segments(page, 1)
        wait_for_state(page, "idle")
        assert text_of(page) == decoded(server.model, path) != ""
    events = [json.loads(line)["event"] for line in server.log().splitlines()]
    streams = [event for event in events if event.startswith("stream_")]
    assert streams[-4:] == 2 * ["stream_started"] + 2 * ["stream_ended"], "not at once"


def test_a_second_recording_goes_on_after_the_first(server, open_page, tmp_path):
    path = noise_file(tmp_path, seconds=1.5, seed=12)
    page = open_page(server)
    choose_settings(page, hasEndpoints=False, isFast=True)
    for number in (1, 2):
        drop(page, path)
        wait_for_segments(page, number)
        wait_for_state(page, "idle")
    assert text_of(page) == " ".join([decoded(server.model, path)] * 2)
    found = json.loads(saved(page, "json")[0])
    starts = [word["start"] for word in found["words"]]
    half = len(starts) // 2
    assert found["seconds"] == 3.0
    assert starts[half:] == pytest.approx([start + 1.5 for start in starts[:half]], abs=0.002)


def test_a_refused_microphone_is_explained(server, open_page):
    page = open_page(server, permissions=[])
    page.click("#main")
    page.wait_for_selector("text=The microphone was refused", timeout=WAIT)
    assert page.get_attribute("#messages", "role") == "alert"
    assert page.inner_text("#status") == "Ready"
    page.click(".message button")
    assert page.locator("#messages .message").count() == 0


def test_no_microphone_without_a_secure_context(model, open_page, tmp_path):
    options = ("--max-streams", "8", "--allow-origin", "*")
    path = noise_file(tmp_path, seconds=1.0, seed=13)
    with Server(model, keep=tmp_path, options=options) as server:
        page = open_page(server, host="midge.test", permissions=[])
        assert page.evaluate("window.isSecureContext") is False
        page.wait_for_selector("text=--certificate", timeout=WAIT)
        page.click("#main")
        page.wait_for_selector("text=--certificate", timeout=WAIT)
        choose_settings(page, hasEndpoints=False, isFast=True)
        drop(page, path)
        wait_for_segments(page, 1)
        assert text_of(page) == decoded(model, path), "files work there too"


def test_a_file_that_is_no_sound(server, open_page, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("no sound")
    page = open_page(server)
    drop(page, path)
    page.wait_for_selector("text=cannot read notes.txt", timeout=WAIT)
    assert page.inner_text("#status") == "Ready"


def test_a_token(model, open_page, tmp_path):
    options = ("--max-streams", "8", "--token", "secret")
    path = noise_file(tmp_path, seconds=1.0, seed=14)
    with Server(model, keep=tmp_path, options=options) as server:
        page = open_page(server)
        drop(page, path)
        page.wait_for_selector("text=The server wants a token", timeout=WAIT)
        page = open_page(server, query="?token=secret")
        choose_settings(page, isFast=True)
        drop(page, path)
        wait_for_segments(page, 1)

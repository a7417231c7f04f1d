"""How the page looks and handles: keyboard, screen reader, contrast, widths."""

import json
import re

import pytest

from page_actions import (
    choose_settings,
    drop,
    noise_file,
    wait_for,
    wait_for_open_words,
    wait_for_segments,
    wait_for_state,
)

pytestmark = pytest.mark.slow


def test_the_model_is_presented(server, open_page):
    page = open_page(server)
    wait_for(page, "document.getElementById('model').textContent !== ''")
    assert page.is_visible("text=Press the button and speak")
    shown = page.inner_text("#model")
    assert shown == json.loads(page.request.get(page.url + "health").text())["model"]


def test_words_tell_their_times(server, open_page, tmp_path):
    path = noise_file(tmp_path, seconds=2.0, seed=15)
    page = open_page(server)
    choose_settings(page, hasEndpoints=False, isFast=True)
    drop(page, path)
    wait_for_segments(page, 1)
    wait_for_state(page, "idle")
    words = page.locator("#segments .word")
    tip = r"\d\.\d\d to \d\.\d\d s, \d+ % sure"
    words.nth(1).hover()
    assert re.fullmatch(tip, page.inner_text("#tip"))
    page.hover("h1")
    assert page.is_hidden("#tip")
    # With the keyboard: one tab stop, then arrows.
    assert page.locator(".sheet [tabindex='0']").count() == 1
    words.nth(0).focus()
    page.keyboard.press("ArrowRight")
    focused = page.locator(":focus")
    assert focused.inner_text() == words.nth(1).inner_text()
    assert focused.get_attribute("aria-describedby") == "tip"
    assert re.fullmatch(tip, page.inner_text("#tip"))
    page.keyboard.press("End")
    assert page.locator(":focus").inner_text() == words.last.inner_text()


def test_it_can_be_heard_and_typed(server, open_page, tmp_path):
    path = noise_file(tmp_path, seconds=2.0, seed=16)
    page = open_page(server)
    page.focus("#main")
    assert page.get_attribute("#main", "aria-label") == "Start the microphone"
    page.keyboard.press("Enter")
    wait_for_state(page, "live")
    assert page.get_attribute("#main", "aria-label") == "Stop"
    wait_for_open_words(page, 0)
    # A screen reader is told segments that are over, not each guess.
    assert page.get_attribute("#segments", "role") == "log"
    assert page.get_attribute("#segments", "aria-live") == "polite"
    assert page.get_attribute("#open", "aria-live") == "off"
    assert page.locator("#segments #open").count() == 0
    level = float(page.get_attribute("#level", "aria-valuenow"))
    assert -60 <= level <= 0
    page.keyboard.press("Enter")
    wait_for_state(page, "idle")
    assert page.locator("#segments .segment").count() > 0
    names = page.evaluate(
        """[...document.querySelectorAll("button")].map(
          (button) => (button.getAttribute("aria-label") ?? button.textContent).trim())"""
    )
    assert all(names)
    drop(page, path)  # while nothing runs, a file may follow
    wait_for_state(page, "live")
    wait_for_state(page, "idle")


CONTRAST = """(selectors) => {
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255).map(
      (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const painted = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) {
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
    }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const contrast = (element) => {
    const grounds = [];
    for (let each = element; each; each = each.parentElement) {
      grounds.unshift(getComputedStyle(each).backgroundColor);
    }
    const ground = painted(grounds);
    const ink = painted([...grounds, getComputedStyle(element).color]);
    const [low, high] = [luminance(ground), luminance(ink)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  return selectors.flatMap((selector) => {
    const found = [...document.querySelectorAll(selector)];
    if (found.length === 0) throw new Error(`nothing is ${selector}`);
    return found.map((element) => [selector, contrast(element)]);
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(server, open_page, scheme):
    page = open_page(server, color_scheme=scheme, reduced_motion="reduce")
    page.evaluate(
        """() => {
          document.getElementById("open").innerHTML =
            '<span class="word">word</span><span class="word tentative">word</span>';
          document.getElementById("readings").innerHTML =
            '<li><span class="share">1 %</span><mark>word</mark></li>';
          // As the page does it: the policy refuses styles in markup.
          for (const word of document.querySelectorAll("#open .word")) {
            word.style.setProperty("--doubt", 1);
          }
          document.querySelector(".share").style.setProperty("--share", 1);
          document.getElementById("alternatives").hidden = false;
          document.getElementById("tip").hidden = false;
          for (const button of document.querySelectorAll("button")) button.disabled = false;
          for (const kind of ["error", "warning"]) {
            document.getElementById("messages").insertAdjacentHTML(
              "beforeend", `<div class="message ${kind}"><p>text</p></div>`);
          }
        }"""
    )
    selectors = ["h1", "h2", "dt", "dd", "button", "legend", ".model", ".status", ".open .word"]
    selectors += [".empty p", "summary", ".message p", "mark", ".tip", ".note", ".scale", "label"]
    shade = page.evaluate("getComputedStyle(document.querySelector('#open .word')).backgroundColor")
    assert not shade.endswith("/ 0)") and shade != "rgba(0, 0, 0, 0)", "not shaded"
    found = page.evaluate(CONTRAST, selectors)
    assert [pair for pair in found if pair[1] < 4.5] == []


@pytest.mark.parametrize("width", [320, 375, 768, 1280])
def test_every_width(server, open_page, tmp_path, width):
    path = noise_file(tmp_path, seconds=1.5, seed=17)
    page = open_page(server, viewport={"width": width, "height": 640})
    choose_settings(page, isFast=True)
    drop(page, path)
    wait_for_segments(page, 1)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for part in ("#main", "#choose", "#settings-button", "#copy", "#spectrogram"):
        box = page.locator(part).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width, part

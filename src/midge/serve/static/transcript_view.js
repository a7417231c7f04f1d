/** The transcript on the page: segments that are over, and the one that is being heard. */

/** Below this a word is also underlined: shading alone would leave out who sees no colours. */
const DOUBTFUL = 0.5;
/** Nearer to the end than this, in pixels, the view follows new words. */
const NEAR = 80;

export class TranscriptView {
  /**
   * @param {Document} document
   * @param {object} handlers `span({start, end} | null)`: the word that is pointed at.
   */
  constructor(document, handlers) {
    this._sheet = document.getElementById("sheet");
    this._segments = document.getElementById("segments");
    this._open = document.getElementById("open");
    this._empty = document.getElementById("empty");
    this._tip = document.getElementById("tip");
    this._handlers = handlers;
    this._numShown = 0;
    this._listen();
  }

  /** Shows a transcript as it is now; segments that are shown already stay untouched. */
  show(transcript) {
    const isNear = this._isNearEnd();
    if (transcript.segments.length < this._numShown) this._clear();
    for (const segment of transcript.segments.slice(this._numShown)) {
      this._segments.append(segmentElement(segment));
    }
    this._numShown = transcript.segments.length;
    const { committed, tentative } = transcript.open;
    showWords(this._open, [...committed, ...tentative], committed.length);
    this._empty.hidden = !transcript.isEmpty;
    this._keepTabStop();
    if (isNear) this.scrollToEnd();
  }

  /** Shows the newest words. */
  scrollToEnd() {
    this._sheet.scrollTop = this._sheet.scrollHeight;
  }

  _clear() {
    this._segments.replaceChildren();
    this._numShown = 0;
    this._point(null);
  }

  _isNearEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this._sheet;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }

  _listen() {
    for (const name of ["pointerover", "focusin", "click"]) {
      this._sheet.addEventListener(name, ({ target }) => this._point(target.closest(".word")));
    }
    for (const name of ["pointerleave", "focusout"]) {
      this._sheet.addEventListener(name, () => this._point(null));
    }
    this._sheet.addEventListener("scroll", () => this._place());
    this._sheet.addEventListener("keydown", (event) => this._walk(event));
  }

  /** Shows when a word was said, and how sure it is; for null hides it. */
  _point(word) {
    this._pointed?.removeAttribute("aria-describedby");
    this._pointed = word;
    this._tip.hidden = word === null;
    if (word === null) {
      this._handlers.span(null);
      return;
    }
    const { start, end, confidence } = word.dataset;
    word.setAttribute("aria-describedby", "tip");
    this._tip.textContent = tipText(start, end, confidence);
    this._place();
    this._handlers.span({ start: Number(start), end: Number(end) });
  }

  /** Puts the tip above its word; below it at the top of the window. */
  _place() {
    if (!this._pointed) return;
    const box = this._pointed.getBoundingClientRect();
    const half = this._tip.offsetWidth / 2;
    const middle = Math.max(half + 8, Math.min(innerWidth - half - 8, box.left + box.width / 2));
    this._tip.style.left = `${middle - half}px`;
    const above = box.top - this._tip.offsetHeight - 6;
    this._tip.style.top = `${above < 8 ? box.bottom + 6 : above}px`;
  }

  /** Only one word is a stop of the tab key; arrows walk from word to word. */
  _keepTabStop() {
    if (this._sheet.querySelector('.word[tabindex="0"]')) return;
    this._sheet.querySelector(".word")?.setAttribute("tabindex", "0");
  }

  _walk(event) {
    if (event.key === "Escape") this._point(null);
    const words = [...this._sheet.querySelectorAll(".word")];
    const place = words.indexOf(document.activeElement);
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -words.length, End: words.length };
    if (place < 0 || !(event.key in steps)) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(words.length - 1, place + steps[event.key]));
    words[place].tabIndex = -1;
    words[next].tabIndex = 0;
    words[next].focus();
  }
}

function segmentElement(segment) {
  const paragraph = document.createElement("p");
  paragraph.className = segment.isFinal ? "segment" : "segment interrupted";
  paragraph.dataset.time = clock(segment.start);
  showWords(paragraph, segment.words, segment.words.length);
  if (!segment.isFinal) {
    paragraph.title = "The connection broke before the server could confirm these words.";
  }
  return paragraph;
}

/** Makes the words of an element those given; what stays the same is not touched. */
function showWords(element, words, numFirm) {
  while (element.children.length > words.length) {
    element.lastChild.remove();
    element.lastElementChild?.nextSibling?.remove();
  }
  words.forEach((word, place) => {
    if (place >= element.children.length) {
      // The space lets the line break there, and is copied with the words.
      if (place > 0) element.append(" ");
      element.append(newWord());
    }
    showWord(element.children[place], word, place < numFirm);
  });
}

function newWord() {
  const element = document.createElement("span");
  element.tabIndex = -1;
  return element;
}

function showWord(element, { text, start, end, confidence }, isFirm) {
  const isKnown = typeof confidence === "number";
  const isDoubtful = isKnown && confidence < DOUBTFUL;
  if (element.textContent !== text) element.textContent = text;
  const name = `word${isFirm ? "" : " tentative"}${isDoubtful ? " doubtful" : ""}`;
  if (element.className !== name) element.className = name;
  element.style.setProperty("--doubt", isKnown ? doubt(confidence) : 0);
  element.dataset.start = start;
  element.dataset.end = end;
  if (isKnown) element.dataset.confidence = confidence;
  else delete element.dataset.confidence;
}

/** From 0 to 1. Small doubts are shaded less, so that the eye finds the large ones. */
function doubt(confidence) {
  return Math.max(0, 1 - confidence) ** 1.5;
}

function tipText(start, end, confidence) {
  const times = `${Number(start).toFixed(2)} to ${Number(end).toFixed(2)} s`;
  return confidence === undefined ? times : `${times}, ${Math.round(100 * confidence)} % sure`;
}

/** Minutes and seconds. */
export function clock(seconds) {
  const whole = Math.floor(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

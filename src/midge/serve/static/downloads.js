/** The buttons that copy, download and clear the transcript. */

import { toJson, toSrt, toText } from "./formats.js";

const FORMATS = {
  txt: [toText, "text/plain"],
  srt: [toSrt, "application/x-subrip"],
  json: [toJson, "application/json"],
};
const TOLD_MILLISECONDS = 1500;

export class Downloads {
  /**
   * @param {Document} document
   * @param {import("./transcript.js").Transcript} transcript
   * @param {() => void} clear what the clear button does.
   */
  constructor(document, transcript, clear) {
    this._transcript = transcript;
    this._buttons = [...document.querySelectorAll(".tools button")];
    for (const button of this._buttons) {
      const { format } = button.dataset;
      if (format) button.onclick = () => this._download(format);
    }
    const copy = document.getElementById("copy");
    copy.onclick = () => this._copy(copy);
    this._clear = document.getElementById("clear");
    this._clear.onclick = clear;
  }

  /** Enables what can be done now. */
  update(isRunning) {
    for (const button of this._buttons) button.disabled = this._transcript.isEmpty;
    // Words of a recording that runs would come back.
    this._clear.disabled = this._transcript.isEmpty || isRunning;
  }

  _download(format) {
    const [write, type] = FORMATS[format];
    const url = URL.createObjectURL(
      new Blob([write(this._transcript)], { type: `${type};charset=utf-8` }),
    );
    const link = document.createElement("a");
    link.href = url;
    link.download = `${stem(this._transcript.sources)}.${format}`;
    link.click();
    URL.revokeObjectURL(url);
  }

  async _copy(button) {
    const isDone = await copyText(toText(this._transcript));
    button.textContent = isDone ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), TOLD_MILLISECONDS);
  }
}

/** A name for the file: that of the only recording, or else the page's. */
function stem(sources) {
  return sources.length === 1 ? sources[0].replace(/\.[^.]+$/, "") : "transcript";
}

/** Outside of a secure context there is no clipboard; the old command still works there. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    return isDone;
  }
}

/** What the visitor may choose. It is remembered by the browser. */

const STORED = "midge-settings";
const DEFAULTS = {
  hasEndpoints: true,
  pause: 0.8,
  hasConfidence: true,
  numBest: 3,
  isAudible: true,
  isFast: false,
};
/** The server's other two times, which are to be no shorter than the pause. */
const SILENCE = 5;
const MAX_SEGMENT = 20;

export class Settings {
  /** @param {Document} document */
  constructor(document) {
    this._dialog = document.getElementById("settings");
    this._form = this._dialog.querySelector("form");
    this.values = { ...DEFAULTS, ...stored() };
    this._fill();
    this._form.addEventListener("input", () => this._read());
    document.getElementById("settings-button").onclick = () => this._dialog.showModal();
    this._dialog.addEventListener("click", ({ target }) => {
      // The dialog itself is hit beside its form, on the backdrop.
      if (target === this._dialog) this._dialog.close();
    });
  }

  /** The part of the server's "start" command that is chosen here. */
  get start() {
    const { hasEndpoints, pause, hasConfidence, numBest } = this.values;
    return {
      endpointing: hasEndpoints && { pause, silence: SILENCE, max_segment: MAX_SEGMENT },
      confidence: hasConfidence,
      num_best: numBest,
      // An answer to each message, so that the figures are of now.
      progress: true,
    };
  }

  _fill() {
    for (const [name, value] of Object.entries(this.values)) {
      const field = this._form.elements[name];
      if (typeof value === "boolean") field.checked = value;
      else field.value = value;
    }
    this._show();
  }

  _read() {
    for (const [name, value] of Object.entries(DEFAULTS)) {
      const field = this._form.elements[name];
      this.values[name] = typeof value === "boolean" ? field.checked : Number(field.value);
    }
    this._show();
    try {
      localStorage.setItem(STORED, JSON.stringify(this.values));
    } catch {
      // A private window may refuse; the choice then holds for this visit.
    }
  }

  _show() {
    const { pause, hasEndpoints, hasConfidence, isFast } = this.values;
    this._form.elements.pauseShown.value = `${pause.toFixed(1)} s`;
    this._form.elements.pause.disabled = !hasEndpoints;
    this._form.elements.isAudible.disabled = isFast;
    document.getElementById("scale").hidden = !hasConfidence;
  }
}

/** What was chosen on an earlier visit, as far as it is still a choice. */
function stored() {
  try {
    const found = JSON.parse(localStorage.getItem(STORED)) ?? {};
    return Object.fromEntries(
      Object.entries(DEFAULTS)
        .filter(([name, value]) => typeof found[name] === typeof value)
        .map(([name]) => [name, found[name]]),
    );
  } catch {
    return {};
  }
}

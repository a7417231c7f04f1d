/** What the page says when something does not go as it should, and what to do about it. */

const MICROPHONE = {
  insecure:
    "Browsers give the microphone only to pages of this machine or over HTTPS. Open the page as " +
    "http://localhost, or start the server with --certificate and --key. Files work all the same.",
  refused:
    "The microphone was refused. Allow it for this page in the browser (the sign beside the " +
    "address), then press the button again. Files work without it.",
  missing: "No microphone was found. Connect one, or choose a file.",
  busy: "The microphone cannot be opened; another program may hold it.",
  unsupported: "This browser cannot record for this page; a newer one can. Files may still work.",
};

const SERVER = {
  full: "The server is full: it hears as many streams as it can. Try again in a moment.",
  client_full: "Your address has as many streams as one may have. End another one first.",
  shutdown: "The server is shutting down. Try again when it is back.",
  unauthorized: "The server wants a token. Open the page with ?token=… in its address.",
  origin: "The server does not take streams from this page's address.",
};

/** Why there is no microphone. */
export function microphoneMessage({ code, message }) {
  return code === "unsupported" ? `${MICROPHONE.unsupported} (${message})` : MICROPHONE[code];
}

/** Why the server ended a stream. */
export function serverMessage({ code, message }) {
  return SERVER[code] ?? `The server ended the stream: ${message}`;
}

/** What a stream that goes on has to tell. */
export function warningMessage({ code, message, seconds }) {
  if (code !== "behind") return `The server says: ${message}`;
  return `The server is ${seconds.toFixed(1)} s behind; words come late, but none is lost.`;
}

/** The connection broke. */
export function waitingMessage({ seconds, attempt, code }) {
  const isFull = code === "full" || code === "client_full";
  const reason = isFull ? "The server is full." : "No connection to the server.";
  const kept = attempt > 1 ? "" : " What was said is kept, and what you say meanwhile too.";
  return `${reason}${kept} Next attempt in ${Math.max(1, Math.round(seconds))} s.`;
}

/** Sound that could be neither sent nor kept. */
export function lostMessage(seconds) {
  return `The connection was away for too long: ${seconds.toFixed(1)} s of sound are lost.`;
}

export const SILENT = "The microphone gives no sound at all. Is it muted?";
export const ENDED = "The microphone was taken away. What was said is kept.";

/** A file that the browser cannot play. */
export function fileMessage(name) {
  return `This browser cannot read ${name} as audio. WAV, FLAC, MP3 and Ogg usually work.`;
}

/** Shows messages, one for each topic. */
export class Messages {
  /** @param {HTMLElement} box with the role alert, so that they are read out. */
  constructor(box) {
    this._box = box;
    this._shown = new Map();
  }

  /**
   * @param {string} topic a later message on it takes the place of this one.
   * @param {string} text
   * @param {"error" | "warning"} kind
   */
  show(topic, text, kind = "error") {
    const old = this._shown.get(topic);
    const element = old ?? this._add(topic);
    element.className = `message ${kind}`;
    if (element.firstChild.textContent !== text) element.firstChild.textContent = text;
  }

  /** Removes the messages on these topics; without any, all. */
  clear(...topics) {
    for (const topic of topics.length > 0 ? topics : [...this._shown.keys()]) {
      this._shown.get(topic)?.remove();
      this._shown.delete(topic);
    }
  }

  _add(topic) {
    const element = document.createElement("div");
    const close = document.createElement("button");
    close.type = "button";
    close.textContent = "×";
    close.setAttribute("aria-label", "Dismiss");
    close.onclick = () => this.clear(topic);
    element.append(document.createElement("p"), close);
    this._shown.set(topic, element);
    this._box.append(element);
    return element;
  }
}

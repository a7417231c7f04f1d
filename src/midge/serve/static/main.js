/** The page: a source of sound, a session with the server, and what is shown of both. */

import { Alternatives } from "./alternatives.js";
import { streamAddress } from "./connection.js";
import { Downloads } from "./downloads.js";
import { FilePlayer } from "./file_player.js";
import { describeModel } from "./health.js";
import * as texts from "./messages.js";
import { LatencyMeter, LevelMeter } from "./meters.js";
import { Microphone, MicrophoneError } from "./microphone.js";
import { Session } from "./session.js";
import { Settings } from "./settings.js";
import { Spectrogram } from "./spectrogram.js";
import { Transcript } from "./transcript.js";
import { TranscriptView } from "./transcript_view.js";

/** As many words are enough for the picture. */
const NUM_PICTURED = 60;
/** As much sound may wait at the server before the visitor is told. */
const MUCH_BEHIND_SECONDS = 2;

class Page {
  constructor() {
    this._transcript = new Transcript();
    this._settings = new Settings(document);
    this._messages = new texts.Messages(document.getElementById("messages"));
    this._spectrogram = new Spectrogram(document.getElementById("spectrogram"));
    this._view = new TranscriptView(document, {
      span: (span) => this._spectrogram.highlight(span),
    });
    this._alternatives = new Alternatives(document);
    this._level = new LevelMeter(document);
    this._latency = new LatencyMeter(document);
    this._downloads = new Downloads(document, this._transcript, () => this._clear());
    this._button = document.getElementById("main");
    this._status = document.getElementById("status");
    this._button.onclick = () => (this._source ? this._stop() : this._listen());
    this._acceptFiles();
    describeModel(document, this._messages);
    if (!window.isSecureContext) {
      this._messages.show("source", texts.microphoneMessage({ code: "insecure" }), "warning");
    }
  }

  /** The file button, and files that are dropped anywhere. */
  _acceptFiles() {
    const input = document.getElementById("file");
    this._choose = document.getElementById("choose");
    this._choose.onclick = () => input.click();
    input.onchange = () => {
      if (input.files.length > 0) this._playFile(input.files[0]);
      input.value = "";
    };
    const isFile = (event) => event.dataTransfer?.types.includes("Files");
    const mark = (isOver) => document.body.classList.toggle("is-dropping", isOver);
    window.addEventListener("dragover", (event) => {
      if (!isFile(event)) return;
      event.preventDefault();
      mark(true);
    });
    window.addEventListener("dragleave", (event) => event.relatedTarget === null && mark(false));
    window.addEventListener("drop", (event) => {
      if (!isFile(event)) return;
      event.preventDefault();
      mark(false);
      if (event.dataTransfer.files.length > 0) this._playFile(event.dataTransfer.files[0]);
    });
  }

  _listen() {
    const microphone = new Microphone({
      samples: (samples) => this._push(samples),
      ended: () => {
        this._messages.show("source", texts.ENDED, "warning");
        this._stop();
      },
      silent: (isSilent) => {
        if (isSilent) this._messages.show("silence", texts.SILENT, "warning");
        else this._messages.clear("silence");
      },
    });
    return this._run(microphone, "microphone", async () => {
      await microphone.start();
      this._begin(microphone, "microphone");
    });
  }

  async _playFile(file) {
    if (this._source) return;
    const player = new FilePlayer(file, this._settings.values, {
      samples: (samples) => this._push(samples),
      ended: () => this._session.finish(),
      canTake: () => this._session.canTake,
    });
    await this._run(player, file.name, async () => {
      await player.open();
      this._begin(player, file.name);
      await player.start();
    });
  }

  /** Opens a source; while the browser asks the visitor, the button waits. */
  async _run(source, name, open) {
    this._messages.clear();
    this._source = source;
    this._name = name;
    this._setState("opening");
    try {
      await open();
    } catch (error) {
      const isMicrophone = error instanceof MicrophoneError;
      const text = isMicrophone ? texts.microphoneMessage(error) : texts.fileMessage(name);
      this._messages.show("source", text);
      this._source = null;
      this._setState("idle");
    }
  }

  _begin(source, name) {
    this._transcript.begin(name);
    this._spectrogram.begin(source.sampleRate, this._transcript.seconds);
    this._latency.begin();
    const start = {
      sample_rate: source.sampleRate,
      encoding: source.encoding,
      ...this._settings.start,
    };
    this._session = new Session(streamAddress(location.href), start, this._sessionHandlers());
  }

  _sessionHandlers() {
    return {
      state: (state, details) => this._sessionState(state, details),
      partial: (words) => this._transcript.setOpen(words),
      final: (segment) => this._transcript.close(segment),
      alternatives: (key, found) => this._transcript.setAlternatives(key, found),
      heard: () => this._show(),
      warning: (warning) => this._warn(warning),
      broken: (seconds) => this._transcript.keepBefore(seconds),
      lost: (seconds) => this._messages.show("lost", texts.lostMessage(seconds)),
    };
  }

  /** Tells a warning. That the server is behind is told while it is; of a fast file never. */
  _warn(warning) {
    const isBehind = warning.code === "behind";
    if (isBehind && (warning.seconds < MUCH_BEHIND_SECONDS || this._source.isFast)) {
      this._messages.clear("behind");
      return;
    }
    const topic = isBehind ? "behind" : "warning";
    this._messages.show(topic, texts.warningMessage(warning), "warning");
  }

  _push(samples) {
    if (!this._session) return;
    this._session.push(samples);
    this._pushedAt = performance.now();
    this._transcript.lengthen(this._session.seconds);
    this._level.push(samples, this._source.sampleRate);
    this._spectrogram.push(samples);
    this._latency.showPosition(this._transcript.seconds);
  }

  /** Ends the recording; pressed once more, while words still come, it stops waiting for them. */
  async _stop() {
    if (!this._session) return;
    const session = this._session;
    if (this._isStopping) {
      session.abandon();
      return;
    }
    this._isStopping = true;
    await this._source.stop();
    session.finish();
  }

  _sessionState(state, details) {
    if (state === "waiting") {
      this._messages.show("connection", texts.waitingMessage(details), "warning");
    } else if (state !== "connecting") this._messages.clear("connection");
    if (state === "failed") this._messages.show("server", texts.serverMessage(details));
    if (state === "ended" || state === "failed") this._end();
    else this._setState(state);
  }

  _end() {
    this._source.stop();
    this._transcript.end();
    this._source = this._session = null;
    this._isStopping = false;
    this._level.clear();
    this._messages.clear("silence", "behind");
    this._setState("idle");
    this._show();
  }

  _show() {
    this._view.show(this._transcript);
    this._alternatives.show(this._transcript);
    const { committed, tentative } = this._transcript.open;
    const firm = this._transcript.words.slice(0, -tentative.length || undefined);
    this._spectrogram.setWords(firm.slice(-NUM_PICTURED), tentative);
    this._downloads.update(this._source !== null);
    if (!this._session) return;
    const { seconds, decodedSeconds } = this._session;
    const before = this._transcript.seconds - seconds;
    const newest = [...committed, ...tentative].map((word) => ({ end: word.end - before }));
    // Speech has gone on since the last piece of sound.
    const position = seconds + (performance.now() - this._pushedAt) / 1000;
    if (!this._source.isFast) this._latency.compare(position, seconds - decodedSeconds, newest);
  }

  _clear() {
    this._transcript.clear();
    this._spectrogram.clear();
    this._latency.begin();
    this._latency.showPosition(0);
    this._messages.clear();
    this._show();
  }

  _setState(state) {
    document.body.dataset.state = state;
    const isIdle = state === "idle";
    const name = this._source instanceof Microphone ? "Listening" : `Hearing ${this._name}`;
    const said = {
      idle: "Ready",
      opening: "Opening …",
      connecting: "Connecting …",
      live: name,
      waiting: "Connecting again …",
      finishing: "The last words …",
    };
    this._status.textContent = said[state];
    this._choose.disabled = !isIdle;
    this._button.setAttribute("aria-label", isIdle ? "Start the microphone" : "Stop");
    this._downloads.update(!isIdle);
  }
}

new Page();

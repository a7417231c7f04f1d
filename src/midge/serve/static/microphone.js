/** The microphone as a source of sound: mono pieces of 16 kHz, as they are recorded. */

export const MICROPHONE_RATE = 16000;
/** Quieter than this in every sample is not a quiet room but a muted device. */
const DIGITAL_SILENCE = 1e-5;
const SILENT_SECONDS = 3;

/** Why there is no microphone; `code` is one of insecure, refused, missing, busy, unsupported. */
export class MicrophoneError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

export class Microphone {
  /**
   * @param {object} handlers `samples(Float32Array)`, `ended()` if the device goes away, and
   *   `silent(isSilent)` when it gives nothing but zeros.
   */
  constructor(handlers) {
    this.sampleRate = MICROPHONE_RATE;
    this.encoding = "pcm16";
    this._handlers = handlers;
    this._numSilent = 0;
  }

  /**
   * Asks for the microphone and begins.
   * @throws {MicrophoneError}
   */
  async start() {
    this._media = await openMicrophone();
    try {
      await this._connect();
    } catch (error) {
      this._release();
      throw new MicrophoneError("unsupported", String(error.message || error));
    }
    this._media.getAudioTracks()[0].onended = () => this._handlers.ended();
  }

  /** Stops; all that was recorded has been handed over when the promise is kept. */
  async stop() {
    if (!this._node) return;
    const node = this._node;
    this._node = null;
    await new Promise((resolve) => {
      this._finished = resolve;
      node.port.postMessage("finish");
      // An audio thread that the system has suspended does not answer.
      setTimeout(resolve, 500);
    });
    this._release();
  }

  async _connect() {
    this._context = new AudioContext();
    await this._context.audioWorklet.addModule(new URL("capture_worklet.js", import.meta.url));
    await this._context.resume();
    this._node = new AudioWorkletNode(this._context, "capture", {
      numberOfOutputs: 0,
      processorOptions: { outputRate: MICROPHONE_RATE },
    });
    this._node.port.onmessage = ({ data }) => this._take(data);
    this._context.createMediaStreamSource(this._media).connect(this._node);
  }

  _take({ samples, isOver }) {
    if (isOver) {
      this._finished?.();
      return;
    }
    this._watch(samples);
    this._handlers.samples(samples);
  }

  _watch(samples) {
    const wasSilent = this._isSilent();
    const isSilent = samples.every((value) => Math.abs(value) < DIGITAL_SILENCE);
    this._numSilent = isSilent ? this._numSilent + samples.length : 0;
    if (this._isSilent() !== wasSilent) this._handlers.silent(this._isSilent());
  }

  _isSilent() {
    return this._numSilent > SILENT_SECONDS * MICROPHONE_RATE;
  }

  _release() {
    this._media?.getTracks().forEach((track) => track.stop());
    this._context?.close();
  }
}

/** The sound as it is: what a telephone call wants done to it harms recognition. */
const CONSTRAINTS = {
  audio: {
    channelCount: 1,
    echoCancellation: false,
    noiseSuppression: false,
    autoGainControl: false,
  },
};

async function openMicrophone() {
  if (!window.isSecureContext) {
    throw new MicrophoneError("insecure", "the page is not in a secure context");
  }
  if (!navigator.mediaDevices?.getUserMedia || !window.AudioWorkletNode) {
    throw new MicrophoneError("unsupported", "the browser has no AudioWorklet");
  }
  try {
    return await navigator.mediaDevices.getUserMedia(CONSTRAINTS);
  } catch (error) {
    const code = { NotAllowedError: "refused", NotFoundError: "missing", NotReadableError: "busy" };
    throw new MicrophoneError(code[error.name] ?? "unsupported", error.message);
  }
}

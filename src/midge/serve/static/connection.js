/** One WebSocket to the server, from "start" to "end". If it breaks, the session decides. */

/** The server's address for streams, with the token of the page's own address if it has one. */
export function streamAddress(page) {
  const address = new URL("/stream", page);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  const token = new URL(page).searchParams.get("token");
  if (token !== null) address.searchParams.set("token", token);
  return address.href;
}

export class Connection {
  /**
   * Connects.
   * @param {string} address
   * @param {object} start settings of the stream; see docs/serving.md.
   * @param {object} handlers `event(object)` for each event of the server, and `closed()` once.
   */
  constructor(address, start, handlers) {
    this._encode = start.encoding === "pcm16" ? pcm16 : (samples) => samples;
    this._handlers = handlers;
    this._socket = new WebSocket(address);
    this._socket.onopen = () => this._tell({ command: "start", ...start });
    this._socket.onmessage = ({ data }) => handlers.event(JSON.parse(data));
    // After an error a browser closes too; it does not tell a page why.
    this._socket.onclose = () => handlers.closed();
  }

  /** Bytes that wait to be sent. */
  get numWaiting() {
    return this._socket.bufferedAmount;
  }

  /** Sends sound: floats in [-1, 1]. */
  send(samples) {
    this._socket.send(this._encode(samples));
  }

  /** Tells that there is no more. The server finishes and closes. */
  end() {
    this._tell({ command: "end" });
  }

  /** Leaves without another word to the handlers. */
  close() {
    this._socket.onopen = this._socket.onmessage = this._socket.onclose = null;
    this._socket.close();
  }

  _tell(message) {
    this._socket.send(JSON.stringify(message));
  }
}

/** Little endian as the protocol wants it, because every machine with a browser is. */
function pcm16(samples) {
  return Int16Array.from(samples, (value) =>
    Math.max(-32768, Math.min(32767, Math.round(32768 * value))),
  );
}

/** Other readings of the last segment, the most probable first. */

export class Alternatives {
  /** @param {Document} document */
  constructor(document) {
    this._box = document.getElementById("alternatives");
    this._list = document.getElementById("readings");
  }

  /** Shows the readings of the last segment that has some. */
  show(transcript) {
    const segment = transcript.segments.findLast((each) => each.alternatives.length > 0);
    if (segment === this._segment) return;
    this._segment = segment;
    this._box.hidden = segment === undefined;
    const readings = segment?.alternatives ?? [];
    this._list.replaceChildren(...readings.map((each) => item(each, readings[0].text)));
  }
}

function item({ text, probability }, best) {
  const element = document.createElement("li");
  const share = document.createElement("span");
  share.className = "share";
  share.textContent = `${(100 * probability).toFixed(probability < 0.1 ? 1 : 0)} %`;
  share.style.setProperty("--share", probability);
  const reading = document.createElement("span");
  reading.append(...marked(text, best));
  element.append(share, reading);
  return element;
}

/** The words of a reading; those that the best one has not are marked. */
function marked(text, best) {
  if (text === "") return ["(nothing)"];
  const words = text.split(" ");
  const isShared = sharedWords(words, best.split(" "));
  return words.flatMap((word, place) => {
    const element = document.createElement(isShared[place] ? "span" : "mark");
    element.textContent = word;
    return place > 0 ? [" ", element] : [element];
  });
}

/** Which words belong to the longest common subsequence of both. */
function sharedWords(words, others) {
  const size = Array.from({ length: words.length + 1 }, () => new Uint16Array(others.length + 1));
  for (let i = words.length - 1; i >= 0; i -= 1) {
    for (let j = others.length - 1; j >= 0; j -= 1) {
      size[i][j] =
        words[i] === others[j] ? size[i + 1][j + 1] + 1 : Math.max(size[i + 1][j], size[i][j + 1]);
    }
  }
  const isShared = new Array(words.length).fill(false);
  for (let i = 0, j = 0; i < words.length && j < others.length; ) {
    if (words[i] === others[j]) {
      isShared[i] = true;
      i += 1;
      j += 1;
    } else if (size[i + 1][j] >= size[i][j + 1]) i += 1;
    else j += 1;
  }
  return isShared;
}

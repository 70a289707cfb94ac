// The third step: say a sentence, and see its text.

import { button, element, setAttribute, setText } from "./dom.js";
import { MicrophoneWatch } from "./microphone.js";
import { reason, seconds } from "./text.js";

const QUIET_MS = 15e3; // without anything heard for this long, say what to do
const SLOW_MS = 15e3; // the same without a text after somebody has spoken
const LOOK_MS = 1000;
const ADVICE = {
  too_short: "That was too short. Say a whole sentence.",
  no_speech: "That did not sound like speech. Speak louder, or closer to the microphone.",
  low_confidence: "The model was too unsure of the text. Speak more clearly, or closer to the microphone.",
  reference: "That came from the loudspeakers. Say a sentence yourself.",
};

const lineKey = (one) => (one.text === undefined ? `d${one.key}` : `s${one.seq}`);

export class SentenceStep {
  #watch;
  #known = null; // lines that were there before
  #sinceMs = Date.now(); // since when nobody speaks and no line has come
  #spoken = false; // somebody has spoken, and no line has come since
  #speaking = false;
  #heard = null;
  #text = element("p", { class: "heard", dir: "auto" });
  #status = element("p", { role: "status" });
  #timer = setInterval(() => this.#show(), LOOK_MS);
  #partial = null;

  constructor({ mute, next }) {
    this.#watch = new MicrophoneWatch(mute, "Go back, and plug one in or choose another one.");
    this.nodes = [
      element("p", {}, "Say a sentence, for example: “Turn on the light in the kitchen.”"),
      ...this.#watch.nodes, element("div", { class: "note" }, this.#text, this.#status),
    ];
    this.actions = [button("Finish", next, { class: "main" })];
  }

  update(live) {
    this.#watch.update(live);
    const lines = live.lines.filter((one) => !one.source);
    const fresh = this.#known ? lines.filter((one) => !this.#known.has(lineKey(one))) : [];
    this.#known = new Set(lines.map(lineKey));
    if (live.speaking || this.#speaking || fresh.length || !this.#watch.isOpen) this.#sinceMs = Date.now();
    if (live.speaking && !this.#speaking) this.#spoken = true;
    if (fresh.length) this.#spoken = false;
    this.#speaking = live.speaking;
    this.#partial = live.partial;
    if (fresh.length === 1) this.#heard = fresh[0]; // several at once are the log, read after a restart
    this.#show();
  }

  close() {
    clearInterval(this.#timer);
    this.#watch.close();
  }

  #show() {
    const one = this.#heard, shown = this.#partial ?? (this.#speaking ? null : one);
    setText(this.#text, this.#partial ? `${this.#partial.text} …` : shown?.text ?? "");
    setAttribute(this.#text, "lang", shown?.language);
    this.#text.hidden = !this.#text.textContent;
    setText(this.#status, this.#describe());
  }

  #describe() {
    const quietMs = Date.now() - this.#sinceMs;
    if (!this.#watch.isOpen) return "Nothing is heard now.";
    if (this.#speaking) return "Someone is speaking …";
    if (this.#spoken) {
      return quietMs < SLOW_MS ? "Transcribing …"
        : "There is still no text. The appliance is slow, or the model has failed. Health shows what is wrong.";
    }
    if (this.#heard?.text !== undefined)
      return `It works. The text was ready ${seconds(this.#heard.latency_ms)} after the end of the sentence.`;
    if (this.#heard) return ADVICE[this.#heard.reason] ?? `No text: ${reason(this.#heard.reason)}. Say it again; Health shows what is wrong.`;
    return quietMs < QUIET_MS ? "Listening."
      : "Nothing was heard. Speak louder, or closer to the microphone. If the bar does not move, go back and choose another microphone.";
  }
}

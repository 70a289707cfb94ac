// The microphone now, and the sentences as they come.

import { command, session } from "./api.js";
import { button, element, fillList, setAttribute, setText } from "./dom.js";
import { Meter } from "./meter.js";
import { sentenceKey, sentenceRow } from "./sentence.js";
import { clock, mutedUntil, notice, reason, seconds } from "./text.js";

const ENDS = { "30m": "Mute for 30 minutes", tomorrow: "Mute until tomorrow" };

const KEPT_MS = 60e3; // the appliance keeps the sound of a sentence so long

/** Return true while the sound of a sentence may still be there. */
const isRecent = (one) => Date.now() - new Date(one.end) < KEPT_MS;

/** Play a sentence; return when it has ended. Raises Refusal. */
async function playSentence(id) {
  const samples = [];
  let total = 1, rate = 0;
  while (samples.length < total) {
    const part = await command("playback", { transcript_id: id, offset: samples.length });
    const bytes = Uint8Array.from(atob(part.data), (letter) => letter.charCodeAt(0));
    if (!bytes.length) break;
    samples.push(...new Int16Array(bytes.buffer));
    total = part.samples;
    rate = part.rate_hz;
  }
  const context = new AudioContext(), sound = context.createBuffer(1, samples.length, rate);
  sound.copyToChannel(Float32Array.from(samples, (one) => one / 32768), 0);
  const source = context.createBufferSource();
  source.buffer = sound;
  source.connect(context.destination);
  source.start();
  await new Promise((ended) => setTimeout(ended, 1000 * sound.duration));
  context.close();
}

function heading(live) {
  if (!live.up) return "No connection";
  if (live.state?.status === "muted") return `Microphone muted${mutedUntil(live.state)}`;
  if (live.state?.microphone === "none") return "No microphone";
  return live.speaking ? "Someone is speaking" : "Listening";
}

const discardedRow = (one) =>
  element("li", { class: "none" }, element("time", {}, clock(one.time)),
    element("p", {}, `No text: ${reason(one.reason)}${one.duration_s ? ` (${one.duration_s.toFixed(1)} s)` : ""}`));

export class Live {
  static events = "level";
  #meter = new Meter();
  #light = element("span", { class: "light", "aria-hidden": "true" });
  #heading = element("strong");
  #last = element("div", { class: "soft small number" });
  #problem = notice();
  #partial = element("p", { dir: "auto" });
  #coming = element("ul", { class: "sentences", hidden: true },
    element("li", { class: "coming" }, element("time", {}, "now"), this.#partial));
  #lines = element("ul", { class: "sentences" });
  #empty = element("p", { class: "empty" }, "Say something. It will appear here.");
  #recent = null;
  #play = button("Play last sentence", () => this.#playLast(), { class: "plain", hidden: true });
  #timer = setInterval(() => this.#showPlay(), 1000);
  #mute;
  #muteForAWhile;
  #now;

  /** `mute(on, end)` mutes the microphone or opens it; it raises Refusal. */
  constructor({ mute }) {
    this.#mute = button("Mute", () => this.#problem.attempt(() => mute(!this.#mute.classList.contains("main"))));
    this.#muteForAWhile = element("div", { class: "row whole" }, Object.entries(ENDS).map(([end, text]) =>
      button(text, () => this.#problem.attempt(() => mute(true, end)), { class: "plain small" })));
    this.#now = element("section", { class: "card now", "aria-label": "Now" },
      this.#light, element("div", {}, this.#heading, this.#last, this.#play), this.#mute, this.#muteForAWhile, this.#problem, this.#meter.node);
    this.nodes = [
      this.#now,
      element("section", { class: "card", "aria-labelledby": "sentences" },
        element("h2", { id: "sentences" }, "Sentences"),
        element("div", { role: "log", "aria-label": "Sentences, newest first" }, this.#coming, this.#lines),
        this.#empty),
    ];
  }

  update(live) {
    const muted = live.state?.status === "muted", deaf = live.state?.microphone === "none";
    this.#light.classList.toggle("on", live.speaking && !muted);
    setText(this.#heading, heading(live));
    const last = live.lines.find((one) => one.text !== undefined);
    setText(this.#last, last ? `The last sentence was ready ${seconds(last.latency_ms)} after its end.` : "Nothing heard yet.");
    this.#recent = muted || !live.up ? null : live.lines.find((one) => one.text !== undefined && !one.source) || null;
    this.#showPlay();
    setText(this.#mute, muted ? "Unmute" : "Mute");
    this.#mute.classList.toggle("main", muted);
    for (const one of [this.#mute, ...this.#muteForAWhile.children]) one.disabled = !live.up;
    this.#meter.show(live.up && !muted && !deaf);
    this.#coming.hidden = !live.partial;
    setText(this.#partial, live.partial ? `${live.partial.text} …` : "");
    setAttribute(this.#partial, "lang", live.partial?.language);
    fillList(this.#lines, live.lines,
      (one) => (one.text !== undefined ? sentenceKey(one) : `d${one.key}`),
      (one) => (one.text !== undefined ? sentenceRow(one) : discardedRow(one)));
    this.#empty.hidden = live.lines.length > 0 || Boolean(live.partial);
  }

  #showPlay() {
    this.#play.hidden = !session.playback || !this.#recent || !isRecent(this.#recent);
  }

  async #playLast() {
    setText(this.#play, "Playing …");
    await this.#problem.attempt(() => playSentence(this.#recent.id));
    setText(this.#play, "Play last sentence");
  }

  close() {
    clearInterval(this.#timer);
    this.#meter.show(false);
  }
}

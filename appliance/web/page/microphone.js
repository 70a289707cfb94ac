// The microphone: which one to choose, a test of its level, and what is wrong with it now.

import { command } from "./api.js";
import { button, element, setText } from "./dom.js";
import { Meter, watchLevel } from "./meter.js";
import { message, notice } from "./text.js";

const TEST_S = 5;
const STALE_MS = 3000; // without a level, or with silence alone, for this long, no sound arrives
const LOOK_MS = 1000;
const SILENCE = "Only silence arrives. Speak. If the bar does not move, the microphone is switched off, or muted in the mixer.";
const VERDICTS = {
  good: "The level is good.",
  clipped: "Too loud. Move away, or turn the microphone down.",
  too_quiet: "Too quiet. Move closer, or turn the microphone up.",
  digital_silence: "No sound at all. The microphone is switched off, or muted in the mixer.",
};

/** Return the choices for a microphone, [value, text] each, if `value` is the present one. */
export function microphoneChoices(value, devices = []) {
  const names = devices.map(({ name }) => name);
  // a part of a microphone's name is enough to choose it
  const isPart = value && !names.includes(value) && names.some((name) => name.toLowerCase().includes(value.toLowerCase()));
  return [
    ["", "Default microphone"], ...(value === "none" ? [["none", "None"]] : []),
    ...(isPart ? [value, ...names] : names).map((name) => [name, name]),
  ];
}

/** A button that tries something, and what came of it. */
export class Trial {
  result = element("div", { class: "result", role: "status" });

  /** `meanwhile` is its text until the async function `run` returns nodes to show. */
  constructor(text, meanwhile, run) {
    this.button = button(text, async () => {
      setText(this.button, meanwhile);
      this.result.replaceChildren();
      this.result.replaceChildren(...await run().catch((error) => [element("p", { class: "wrong" }, message(error.message))]));
      setText(this.button, text);
    });
    this.nodes = [element("div", { class: "row" }, this.button), this.result];
  }

  update({ up }) {
    this.button.disabled = !up;
  }
}

/** Record a few seconds and show how loud they were. */
export const microphoneTest = () => new Trial(`Test for ${TEST_S} seconds`, "Say a sentence …", async () => {
  const { verdict, peak_db, words } = await command("microphone_test", { seconds: TEST_S });
  const loudest = peak_db === null || peak_db === undefined ? "" : ` Loudest: ${Math.round(peak_db)} dB.`;
  return [element("p", {}, `${VERDICTS[verdict]}${loudest}`), words ? element("p", { class: "soft" }, `Heard: “${words}”`) : ""];
});

/** Play a ring. */
export const speakerTest = () => new Trial("Play a test sound", "Do you hear this?", async () => {
  const { ending } = await command("speaker_test");
  return [element("p", { class: "soft" }, ending === "failed" ? "It could not be played. Health shows why." : "Played.")];
});

/** The level, and why there is none. */
export class MicrophoneWatch {
  #live = { up: true, state: null };
  #meter = new Meter();
  #problem = notice({ role: "status" });
  #unmute;
  #advice;
  #refused = ""; // why it cannot be unmuted
  #missing = null; // why there is no microphone, once the appliance has said so
  #openedMs = Date.now(); // since when a microphone is open
  #levelMs = 0; // the last level
  #soundMs = 0; // the last one that was not silence
  #timer = setInterval(() => this.#show(), LOOK_MS);
  #stop = watchLevel(({ peak_db }) => {
    this.#levelMs = Date.now();
    if (peak_db !== null) this.#soundMs = Date.now();
  });

  /** `mute(false)` opens the microphone; it raises Refusal. `advice` says what to do without one. */
  constructor(mute, advice) {
    this.#advice = advice;
    this.#unmute = button("Unmute", async () => {
      this.#refused = await mute(false).then(() => "", (error) => error.message);
      this.#show();
    }, { hidden: true });
    this.nodes = [this.#meter.node, this.#problem, element("div", { class: "row" }, this.#unmute)];
  }

  close() {
    clearInterval(this.#timer);
    this.#stop();
    this.#meter.show(false);
  }

  get isMuted() {
    return this.#live.state?.status === "muted";
  }

  /** True while a microphone is open. */
  get isOpen() {
    return Boolean(this.#live.up && this.#live.state && !this.isMuted && this.#live.state.microphone !== "none");
  }

  update(live) {
    const wasOpen = this.isOpen;
    this.#live = live;
    if (this.isOpen && !wasOpen) this.#openedMs = Date.now();
    if (wasOpen || this.isOpen) this.#missing = null;
    if (live.up && live.state?.microphone === "none" && !this.isMuted) this.#findReason();
    this.#meter.show(this.isOpen);
    this.#show();
  }

  /** Ask the appliance why it has no microphone: a test is refused with the reason. */
  async #findReason() {
    if (this.#missing !== null) return;
    this.#missing = "";
    try {
      await command("microphone_test", { seconds: 1 });
      this.#missing = null; // there is one by now
    } catch (error) {
      this.#missing = error.message;
    }
    this.#show();
  }

  #show() {
    this.#unmute.hidden = !this.#live.up || !this.isMuted;
    this.#problem.show(this.#judge());
  }

  /** Return what is wrong and what to do; "" if nothing is, or there is no connection, which the frame shows. */
  #judge() {
    if (!this.#live.up || !this.#live.state) return "";
    if (this.isMuted) return this.#refused || "The microphone is muted. Unmute it to go on.";
    if (!this.isOpen) return this.#missing ? `${this.#missing.replace(/[.]$/, "")}. ${this.#advice}` : "";
    const now = Date.now();
    if (now - Math.max(this.#openedMs, this.#levelMs) > STALE_MS)
      return `No sound arrives from this microphone. ${this.#advice}`;
    return now - Math.max(this.#openedMs, this.#soundMs) > STALE_MS ? SILENCE : "";
  }
}

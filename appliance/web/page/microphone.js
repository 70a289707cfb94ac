// The microphone: which one to choose, a test of its level, and what is wrong with it now.

import { command } from "./api.js";
import { button, element, setText } from "./dom.js";
import { keepMeter, watchLevel } from "./meter.js";
import { message } from "./text.js";

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

/** A button that records a few seconds and shows how loud they were. */
export class MicrophoneTest {
  #button = button(`Test for ${TEST_S} seconds`, () => this.#run());
  #result = element("div", { class: "result", role: "status" });
  nodes = [element("div", { class: "row" }, this.#button), this.#result];

  update({ up }) {
    this.#button.disabled = !up;
  }

  async #run() {
    setText(this.#button, "Say a sentence …");
    this.#result.replaceChildren();
    try {
      const { verdict, peak_db, words } = await command("microphone_test", { seconds: TEST_S });
      const loudest = peak_db === null || peak_db === undefined ? "" : ` Loudest: ${Math.round(peak_db)} dB.`;
      this.#result.replaceChildren(element("p", {}, `${VERDICTS[verdict]}${loudest}`), words ? element("p", { class: "soft" }, `Heard: “${words}”`) : "");
    } catch (error) {
      this.#result.replaceChildren(element("p", { class: "wrong" }, message(error.message)));
    }
    setText(this.#button, `Test for ${TEST_S} seconds`);
  }
}

/** A button that plays a ring. */
export class SpeakerTest {
  #button = button("Play a test sound", () => this.#run());
  #result = element("p", { class: "soft", role: "status" });
  nodes = [element("div", { class: "row" }, this.#button), this.#result];

  update({ up }) {
    this.#button.disabled = !up;
  }

  async #run() {
    setText(this.#result, "Do you hear this?");
    try {
      const { ending } = await command("speaker_test");
      setText(this.#result, ending === "failed" ? "It could not be played. Health shows why." : "Played.");
    } catch (error) {
      this.#result.replaceChildren(...message(error.message));
    }
  }
}

/** The level, and why there is none. */
export class MicrophoneWatch {
  #live = { up: true, state: null };
  #meter = null;
  #meterPlace = element("div");
  #problem = element("p", { class: "wrong", role: "status", hidden: true });
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
    this.nodes = [this.#meterPlace, this.#problem, element("div", { class: "row" }, this.#unmute)];
  }

  close() {
    clearInterval(this.#timer);
    this.#stop();
    this.#meter = keepMeter(this.#meterPlace, this.#meter, false);
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
    this.#meter = keepMeter(this.#meterPlace, this.#meter, this.isOpen);
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
    const text = this.#judge();
    this.#unmute.hidden = !this.#live.up || !this.isMuted;
    if (this.#problem.dataset.why === text) return; // the same text is not read aloud twice
    this.#problem.dataset.why = text;
    this.#problem.hidden = !text;
    this.#problem.replaceChildren(...(text ? message(text) : []));
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

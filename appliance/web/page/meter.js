// The microphone's level, drawn ten times a second.

import { element, setAttribute, setText } from "./dom.js";

const FLOOR_DB = -70;
const SILENCE_DB = -90;
const STALE_MS = 1500; // without a level for this long, the meter shows none
const watchers = new Set();

/** Give the daemon's `level` event to every meter that is shown, and to every other watcher. */
export function showLevel(data) {
  for (const watch of watchers) watch(data);
}

/** Call `watch` with each level until the returned function is called. */
export function watchLevel(watch) {
  watchers.add(watch);
  return () => watchers.delete(watch);
}

export class Meter {
  #canvas = element("canvas", { width: 1200, height: 36 });
  #role = element("div", {
    role: "meter", "aria-label": "Microphone level", "aria-valuemin": FLOOR_DB, "aria-valuemax": 0,
  }, this.#canvas);
  #label = element("span");
  #peak = SILENCE_DB;
  #receivedMs = 0;
  #labelledMs = 0;
  #timer;
  #stop = null; // while it is shown, ends the watching
  #scale = element("div", { class: "scale number", "aria-hidden": "true" },
    element("span", {}, "quiet"), this.#label, element("span", {}, "loud"));
  node = element("div", { class: "meter whole", hidden: true });

  show(isWanted) {
    if (isWanted === Boolean(this.#stop)) return;
    this.node.hidden = !isWanted;
    this.node.replaceChildren(...(isWanted ? [this.#role, this.#scale] : []));
    clearInterval(this.#timer);
    this.#stop?.();
    this.#stop = isWanted ? watchLevel((data) => this.#take(data)) : null;
    if (!isWanted) return;
    this.#timer = setInterval(() => Date.now() - this.#receivedMs >= STALE_MS && this.#clear(), STALE_MS);
    this.#clear();
  }

  #take({ rms_db, peak_db, clipped }) {
    const rms = rms_db ?? SILENCE_DB;
    this.#receivedMs = Date.now();
    this.#peak = Math.max(peak_db ?? SILENCE_DB, this.#peak - 1.5);
    this.#draw(rms, this.#peak, clipped);
    if (Date.now() - this.#labelledMs < 1000) return; // numbers ten times a second cannot be read
    this.#labelledMs = Date.now();
    this.#setLabel(rms, rms <= SILENCE_DB + 1 ? "silence" : `${Math.round(rms)} dB`, clipped);
  }

  #clear() {
    this.#peak = SILENCE_DB;
    this.#draw(SILENCE_DB, SILENCE_DB, false);
    this.#setLabel(SILENCE_DB, "no sound yet", false);
  }

  #setLabel(rms, text, clipped) {
    setAttribute(this.#role, "aria-valuenow", Math.max(FLOOR_DB, Math.round(rms)));
    setAttribute(this.#role, "aria-valuetext", text);
    setText(this.#label, clipped ? "too loud" : text);
  }

  #draw(rms, peak, clipped) {
    const pen = this.#canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const { width, height } = this.#canvas;
    const x = (db) => (Math.max(0, Math.min(-FLOOR_DB, db - FLOOR_DB)) / -FLOOR_DB) * width;
    pen.clearRect(0, 0, width, height);
    pen.fillStyle = style.getPropertyValue(clipped ? "--bad" : "--accent");
    pen.fillRect(0, 0, x(rms), height);
    pen.fillStyle = style.getPropertyValue("--soft");
    if (peak > FLOOR_DB) pen.fillRect(x(peak) - 4, 0, 4, height);
  }
}

// Sentences per hour and day, state, latency and counters of the appliance.

import { readLog } from "./api.js";
import { Chart, roundUp } from "./chart.js";
import { SentenceCounts } from "./counts.js";
import { element, setText } from "./dom.js";
import { DAY_MS, duration, message, mutedUntil, readable, reason, seconds } from "./text.js";

const EVERY_MS = 60e3;
const LONG = 20; // characters; a longer value has smaller letters
const SENTENCES = 2000; // the most that the chart of latencies shows

const degrees = (value) => (value === null || value === undefined ? undefined : `${value.toFixed(1)} °C`);

/** Return terms with values; undefined leaves one out. */
const figures = (pairs) =>
  pairs.filter(([, value]) => value !== undefined).map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", { class: String(value).length > LONG ? "long" : "" }, String(value ?? "–"))));

function summary({ up, state }) {
  if (!up) return "No connection. This is the last known status.";
  if (!state) return "";
  if (state.status === "muted") return `The microphone is muted${mutedUntil(state)}.`;
  if (state.status === "degraded") return "Action needed:";
  return state.reasons.length ? "All is well. For your information:" : "All is well.";
}

/** Return what echo cancellation does, in words; undefined without a reference. */
function echo(reference) {
  if (!reference) return undefined;
  if (reference.delay_ms === null) return "Waiting for sound";
  const drop = reference.reduction_db === null ? "" : `${reference.reduction_db.toFixed(0)} dB softer, `;
  return `${drop}${reference.delay_ms} ms delay`;
}

/** Return what the voice satellite does; undefined without one. */
function talk(assist) {
  if (!assist) return undefined;
  if (assist.listening) return "Listens for an answer, without the phrase";
  const way = assist.way ? `, sentences go as ${assist.way}` : "";
  return `${assist.home ? `Connected from ${assist.home}` : "Not connected"}${way}`;
}

const version = ({ version, updated }) =>
  updated ? `${version}, updated from ${updated.from} on ${updated.at.slice(0, 10)}` : version;

const stateFigures = (state) => figures([
  ["Microphone", state.microphone === "none" ? "None" : state.microphone],
  ["Loudspeakers removed", echo(state.reference)],
  ["Model", state.model_title], ["Encoder", state.encoder], ["Version", version(state)],
  ["Running for", duration(state.uptime_s)],
  ["Other rooms", state.rooms?.join(", ")], ["Home Assistant", talk(state.assist)],
  ["Waiting for transcription", state.queue_depth], ["Waiting for the broker", state.outbox_depth],
]);

const statsFigures = (stats) => figures([
  ["Sentences", stats.transcripts],
  ...Object.entries(stats.discarded).map(([name, value]) => [`No text: ${reason(name)}`, value]),
  ["Recovered after a crash", stats.recovered], ["Lost audio frames", stats.frames_dropped],
  ["Lost by overload", stats.lost_overload], ["Expired before delivery", stats.expired],
  ["Processor", degrees(stats.soc_temperature_c)], ["NPU", degrees(stats.npu_temperature_c)],
  ["Power supply", stats.throttling ? stats.throttling.map(readable).join(", ") || "Good" : undefined],
]);

/** Return the chart of latencies, or null if there is nothing to show. */
function latencyChart(sentences) {
  const known = sentences.filter((one) => one.latency_ms !== null && !one.late);
  const sorted = known.map((one) => one.latency_ms).sort((one, other) => one - other);
  if (!sorted.length) return null;
  const at = (part) => sorted[Math.max(0, Math.ceil(sorted.length * part) - 1)];
  return {
    label: `${sorted.length === 1 ? "1 sentence" : `${sorted.length} sentences`}. Half took at most ${seconds(at(0.5))} (dashed line), 95 % at most ${seconds(at(0.95))}, the slowest ${seconds(at(1))}.`,
    unit: (ms) => `${ms / 1000} s`,
    top: roundUp([250, 500, 1000, 2000, 3000, 5000, 10000, 20000, 50000, 1e5], at(0.99)),
    draw: (x, y, ends) => [
      element("line", { class: "middle", x1: ends[0], x2: ends[1], y1: y(at(0.5)), y2: y(at(0.5)) }),
      element("path", { class: "dots", d: known.map((one) => `M${x(new Date(one.end)).toFixed(1)} ${y(one.latency_ms).toFixed(1)}h0`).join("") }),
    ],
  };
}

export class Health {
  #up = true;
  #summary = element("p");
  #reasons = element("ul", { class: "reasons" });
  #state = element("dl", { class: "figures" });
  #stats = element("dl", { class: "figures" });
  #statusCard = element("section", { class: "card", "aria-labelledby": "state" },
    element("h2", { id: "state" }, "Status"), this.#summary, this.#reasons, this.#state);
  #counters = element("section", { class: "card", "aria-labelledby": "counters", hidden: true },
    element("h2", { id: "counters" }, "Since the last start"), this.#stats);
  #counts = new SentenceCounts();
  #latency = new Chart();
  #note = element("p", { class: "soft" }, "Loading …");
  #timer = setInterval(() => this.#read(), EVERY_MS);
  #closed = false;

  constructor() {
    this.#latency.node.hidden = true;
    this.nodes = [
      element("div", { class: "view" },
        this.#counts.node,
        this.#statusCard,
        element("section", { class: "card", "aria-labelledby": "latency" },
          element("h2", { id: "latency" }, "Latency, last 24 hours"), this.#note, this.#latency.node),
        this.#counters,
        element("p", { class: "soft small" }, "For a full check, run ", element("code", {}, "sudo roomscribe doctor"), " on the appliance.")),
    ];
    this.#read();
  }

  update(live) {
    if (live.up && !this.#up) this.#read();
    this.#up = live.up;
    this.#place(!live.up || live.state?.status === "degraded");
    setText(this.#summary, summary(live));
    if (live.state) {
      const shown = live.state.reasons.map((one) => element("li", {}, message(one)));
      this.#reasons.replaceChildren(...shown);
      this.#reasons.classList.toggle("calm", live.up && live.state.status === "running");
      this.#reasons.hidden = !shown.length;
      this.#state.replaceChildren(...stateFigures(live.state));
    }
    this.#counters.hidden = !live.stats;
    if (live.stats) this.#stats.replaceChildren(...statsFigures(live.stats));
  }

  /** Put the status before the charts while it asks for something, else behind them. */
  #place(isUrgent) {
    const { node } = this.#counts, isFirst = node.previousSibling === this.#statusCard;
    if (isUrgent === isFirst) return;
    if (isUrgent) node.before(this.#statusCard);
    else node.after(this.#statusCard);
  }

  close() {
    this.#closed = true;
    clearInterval(this.#timer);
    this.#counts.close();
    this.#latency.close();
  }

  async #read() {
    this.#counts.read();
    try {
      const lines = await readLog({ since: new Date(Date.now() - DAY_MS).toISOString() }, SENTENCES);
      if (this.#closed) return;
      const latency = latencyChart(lines);
      setText(this.#note, latency ? "" : "Nothing was said in the last 24 hours.");
      this.#note.hidden = Boolean(latency);
      this.#latency.node.hidden = !latency;
      if (latency) this.#latency.show(latency);
    } catch (error) {
      if (!this.#latency.node.hidden) return; // the frame shows that there is no connection
      this.#note.replaceChildren(...message(error.message));
    }
  }
}

// The frame around the views: header, navigation, connection. It holds the state of the appliance.

import { command, session, Stream } from "./api.js";
import { button, element, icon, setAttribute, setText } from "./dom.js";
import { FirstSteps } from "./first-steps.js";
import { Health } from "./health.js";
import { History } from "./history.js";
import { Live } from "./live.js";
import { showLevel } from "./meter.js";
import { describe, Settings } from "./settings.js";
import { message, notice } from "./text.js";

const SHOWN = 60; // lines of the live view
const FIRST = 30; // of which so many are read at the start
const VIEWS = { live: ["Live", Live], history: ["History", History], health: ["Health", Health], settings: ["Settings", Settings] };
const ALL_VIEWS = { ...VIEWS, "first-steps": ["First steps", FirstSteps] };
const STATUSES = { running: "Listening", degraded: "Action needed", muted: "Muted" };
const EVENTS = "transcript,discarded,state,stats,speech,partial,correction,heard_in";

function viewName() {
  const name = location.hash.slice(1).split("?")[0];
  return name in ALL_VIEWS ? name : "live";
}

export class Frame {
  #live = { up: true, why: "", state: null, stats: null, speaking: false, partial: null, lines: [] };
  #away = false;
  #discarded = 0;
  #view = null;
  #stream = new Stream((name, data) => this.#receive(name, data));
  #name = element("span", {}, session.node);
  #status = element("span", { class: "pill", role: "status" }, "…");
  #links = Object.entries(VIEWS).map(([name, [title]]) => element("a", { href: `#${name}` }, icon(name), title));
  #title = element("h2", { class: "hidden" });
  #problem = notice({ class: "banner bad" });
  #reason = element("span");
  #degraded = element("p", { class: "banner", role: "status", hidden: true },
    this.#reason, " ", element("a", { href: "#health" }, "Show details"));
  #content = element("div", { class: "view" });
  #main = element("main", { id: "main", tabindex: -1 }, this.#title, this.#problem, this.#degraded, this.#content,
    session.leaves && element("div", { class: "row end" }, button("Log out", () => this.#leave(), { class: "plain small" })));
  nodes = [
    element("a", { class: "skip", href: "#main", onclick: (event) => (event.preventDefault(), this.#main.focus()) }, "Skip to content"),
    element("header", {}, element("div", { class: "bar" },
      element("img", { src: "icon.svg", alt: "" }),
      element("h1", {}, "Roomscribe", this.#name),
      element("nav", { "aria-label": "Views" }, element("ul", {}, this.#links.map((link) => element("li", {}, link)))),
      this.#status)),
    this.#main,
  ];

  constructor() {
    addEventListener("hashchange", () => location.hash.startsWith("#link=") || this.#open(true));
    describe().catch(() => {}); // titles for messages
    this.#open(false);
    this.#load().then((newest) => this.#stream.start(newest));
  }

  /** Show the view that the address names. */
  #open(moved) {
    const name = viewName(), [title, View] = ALL_VIEWS[name];
    this.#view?.close();
    setText(this.#title, title);
    for (const link of this.#links) setAttribute(link, "aria-current", link.hash === `#${name}` ? "page" : null);
    this.#view = new View({ mute: (on, end) => this.#mute(on, end), onDelete: () => this.#reload() });
    this.#view.update(this.#live);
    this.#content.replaceChildren(...this.#view.nodes);
    // the daemon measures the level only for those who show it
    this.#stream.listen(View.events ? `${EVENTS},${View.events}` : EVENTS);
    this.#update();
    if (!moved) return;
    scrollTo(0, 0);
    this.#main.focus();
  }

  /** Read the state and the last sentences; the number of the newest, or null. */
  async #load() {
    try {
      const state = await command("state"), stats = await command("stats");
      this.#change({ state, stats, up: true });
      const { transcripts } = await command("history", { limit: FIRST });
      const newest = [...transcripts].sort((one, other) => other.seq - one.seq);
      if (!this.#live.lines.length) this.#change({ lines: newest });
      return newest.length ? newest[0].seq : 0;
    } catch (error) {
      this.#away = true;
      this.#change({ up: false, why: error.message });
      return null;
    }
  }

  #reload() {
    this.#change({ lines: [] });
    this.#load();
  }

  async #mute(on, end) {
    await command("mute", { on, end }); // without an end, JSON has none
    this.#change({ state: await command("state") });
  }

  async #leave() {
    await command("logout");
    location.reload();
  }

  #receive(name, data) {
    if (name === "level") showLevel(data);
    else if (name === "daemon") this.#connected(data);
    else if (name === "transcript") this.#add(data, (one) => one.seq !== data.seq);
    else if (name === "discarded") this.#add({ time: Date.now(), ...data, key: ++this.#discarded });
    else if (name === "correction") this.#complete(data.transcript_id, { correction: data.text ?? undefined });
    else if (name === "heard_in") this.#complete(data.transcript_id, { heard_better_by: data.heard_better_by, heard_also: data.heard_also });
    else if (name === "speech") this.#change({ speaking: data.speaking });
    else if (name === "partial") this.#change({ partial: data.text && !data.final ? data : null });
    else this.#change({ [name]: data });
  }

  /** Add to a sentence what became known later. */
  #complete(id, fields) {
    const lines = this.#live.lines.map((one) => (one.id === id ? { ...one, ...fields } : one));
    this.#change({ lines });
    this.#view.complete?.(id, fields);
  }

  #connected({ up, why = "" }) {
    this.#change(up ? { up, why } : { up, why, speaking: false, partial: null });
    if (up && this.#away) this.#load();
    this.#away = !up;
  }

  /** Put a line before the others; `stays` tells which of them do. */
  #add(line, stays = () => true) {
    const { lines, partial } = this.#live;
    this.#change({
      lines: [line, ...lines.filter(stays)].slice(0, SHOWN),
      partial: partial && partial.utterance_id !== line.utterance_id ? partial : null,
    });
  }

  #change(news) {
    Object.assign(this.#live, news);
    this.#update();
    this.#view.update(this.#live);
  }

  #update() {
    const { up, why, state } = this.#live, name = viewName(), status = up ? state?.status : "offline";
    if (state?.node) session.node = state.node;
    const room = state?.room || session.node;
    setText(this.#name, room);
    document.title = `${ALL_VIEWS[name][0]} · Roomscribe ${room}`;
    this.#status.className = `pill ${status || ""}`;
    setText(this.#status, STATUSES[status] || (up ? "…" : "Offline"));
    this.#problem.show(up ? "" : why);
    const shown = up && name === "live" && state?.status === "degraded" && state.reasons[0];
    this.#degraded.hidden = !shown;
    if (shown && this.#reason.dataset.why !== shown) this.#reason.replaceChildren(...message(shown));
    this.#reason.dataset.why = shown || "";
  }
}

// The log: search, delete, save as a file.

import { command, readLog, session } from "./api.js";
import { button, element, fillList, openDialog, setText } from "./dom.js";
import { sentenceKey, sentenceRow } from "./sentence.js";
import { count, dayName, dayOf, notice } from "./text.js";

const PAGE = 50; // sentences that are read at once
const LIMIT = 200; // the most that one answer has
const TYPING_MS = 150;
const KEPT = "history"; // scroll position and number of sentences, in the tab's storage

/** Return the begin and end of a day (a date's text or milliseconds) as the daemon takes them. */
function bounds(day) {
  if (!day) return {};
  const begin = new Date(typeof day === "string" ? `${day}T00:00` : day), end = new Date(begin);
  end.setDate(end.getDate() + 1);
  return { since: begin.toISOString(), until: end.toISOString() };
}

/** Ask before something is deleted; true to go on. The focus returns to where it was. */
function confirmDelete(title, ...text) {
  return new Promise((resolve) => {
    const answer = (yes) => () => (close(), resolve(yes));
    const close = openDialog(title, answer(false), element("p", {}, text),
      element("div", { class: "row end" },
        element("button", { type: "button", autofocus: true, onclick: answer(false) }, "Keep"),
        element("button", { type: "button", class: "danger", onclick: answer(true) }, "Delete")));
  });
}

export class History {
  #kept = JSON.parse(sessionStorage.getItem(KEPT) || "{}");
  #found = null;
  #newest = 0;
  #turn = 0;
  #timer;
  #up = true;
  #query = element("input", {
    id: "query", type: "search", placeholder: "Search sentences", autocomplete: "off", maxlength: 200, oninput: () => this.#typed(),
  });
  #day = element("input", { type: "date", oninput: () => this.#typed() });
  #status = element("span", { class: "soft number", role: "status" }, "Searching …");
  #problem = notice({ class: "banner bad" });
  #days = element("div", { class: "days" });
  #empty = element("p", { class: "empty", hidden: true });
  #more = button("Show older", () => this.#read(PAGE, this.#found.transcripts.at(-1).seq), { hidden: true });
  #exports = ["csv", "jsonl"].map((kind) =>
    button(kind === "csv" ? "CSV" : "JSON lines", () => this.#export(kind), { disabled: true, "aria-label": `Save as ${kind === "csv" ? "CSV" : "JSON lines"}` }));
  #result = element("section", { class: "card", "aria-label": "Sentences", hidden: true }, this.#days, this.#empty, this.#more);
  #onScroll = () => this.#found && sessionStorage.setItem(KEPT, JSON.stringify({ y: scrollY, count: this.#found.transcripts.length }));

  /** `onDelete` runs after sentences are deleted. */
  constructor({ onDelete }) {
    this.onDelete = onDelete;
    const place = new URLSearchParams(location.hash.split("?")[1] || "");
    this.#query.value = place.get("q") || "";
    this.#day.value = place.get("day") || "";
    this.nodes = [
      element("section", { class: "card", "aria-label": "Search" },
        element("div", { class: "search", role: "search" },
          element("label", {}, element("span", { class: "hidden" }, "Words to search for"), this.#query),
          element("label", {}, element("span", { class: "hidden" }, "Day"), this.#day)),
        element("div", { class: "row" }, this.#status,
          element("div", { class: "row push" }, element("span", { class: "soft small" }, "Save as"), this.#exports))),
      this.#problem, this.#result,
    ];
    addEventListener("scroll", this.#onScroll, { passive: true });
    this.#read(Math.min(LIMIT, Math.max(PAGE, this.#kept.count || 0)));
  }

  update(live) {
    const back = live.up && !this.#up;
    this.#up = live.up;
    const newest = live.lines.find((one) => one.seq !== undefined)?.seq ?? 0;
    if (back || (this.#found && !this.#day.value && newest > this.#newest)) this.#read(this.#shownCount());
    this.#newest = Math.max(this.#newest, newest);
    if (!live.up) this.#problem.show(""); // the frame shows that there is no connection
  }

  /** Show what became known of a sentence later, such as a correction. */
  complete(id, fields) {
    const one = this.#found?.transcripts.find((other) => other.id === id);
    if (!one) return;
    Object.assign(one, fields);
    this.#show(this.#status.textContent);
  }

  close() {
    clearTimeout(this.#timer);
    this.#turn++;
    removeEventListener("scroll", this.#onScroll);
  }

  #wanted() {
    const query = this.#query.value.trim();
    return { ...(query ? { query } : {}), ...bounds(this.#day.value) };
  }

  #shownCount() {
    return Math.min(LIMIT, Math.max(PAGE, this.#found?.transcripts.length ?? 0));
  }

  #typed() {
    const place = new URLSearchParams({
      ...(this.#query.value ? { q: this.#query.value } : {}), ...(this.#day.value ? { day: this.#day.value } : {}),
    }).toString();
    history.replaceState(null, "", `#history${place ? `?${place}` : ""}`);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#read(PAGE), TYPING_MS);
  }

  /** Show what is wanted, or with `before` the sentences before that number, too. */
  async #read(limit, before = undefined) {
    const turn = ++this.#turn;
    try {
      const answer = await command("history", { ...this.#wanted(), limit, ...(before ? { before } : {}) });
      if (turn !== this.#turn) return; // a later search has begun
      const transcripts = [...(before ? this.#found.transcripts : []), ...answer.transcripts];
      transcripts.sort((one, other) => other.seq - one.seq);
      this.#found = { transcripts, more: answer.more, total: before ? this.#found.total : answer.total };
      this.#newest = Math.max(this.#newest, transcripts[0]?.seq ?? 0);
      this.#problem.show("");
      this.#show(count(this.#found.total, "sentence", "sentences"));
    } catch (error) {
      if (turn === this.#turn) this.#fail(error);
    }
  }

  #fail(error) {
    setText(this.#status, "");
    this.#problem.show(this.#up ? error.message : "");
  }

  #show(status) {
    const { transcripts, more, total } = this.#found;
    const days = new Map();
    for (const one of transcripts) {
      const day = dayOf(one.start);
      days.set(day, [...(days.get(day) || []), one]);
    }
    fillList(this.#days, [...days.keys()], (day) => day, (day) => this.#daySection(day));
    for (const section of this.#days.children)
      fillList(section.querySelector("ul"), days.get(Number(section.dataset.key)), sentenceKey, (one) =>
        sentenceRow(one, () => this.#deleteOne(one)));
    setText(this.#status, status);
    for (const one of this.#exports) one.disabled = !total;
    this.#empty.hidden = transcripts.length > 0;
    setText(this.#empty, this.#query.value || this.#day.value ? "No sentence matches." : "The log is empty.");
    this.#more.hidden = !more;
    this.#result.hidden = false;
    if (this.#kept.y) scrollTo(0, this.#kept.y);
    this.#kept = {};
  }

  #daySection(day) {
    return element("div", {},
      element("div", { class: "day" }, element("h3", {}, dayName(day)),
        button("Delete this day", () => this.#deleteDay(day), { class: "plain small" })),
      element("ul", { class: "sentences" }));
  }

  async #deleteOne(one) {
    // isolated, so that a sentence of Hebrew or Arabic does not turn the quotes around
    const text = ["“", element("bdi", {}, one.text), "” will be removed from the log. You cannot undo this."];
    if (await confirmDelete("Delete this sentence?", text)) await this.#delete({ ids: [one.id] });
  }

  async #deleteDay(day) {
    const name = dayName(day), when = name.endsWith("day") && !name.includes(" ") ? name.toLowerCase() : name;
    if (await confirmDelete("Delete a whole day?", `Everything said on ${when} will be removed from the log. You cannot undo this.`))
      await this.#delete(bounds(day));
  }

  async #delete(given) {
    try {
      const { deleted } = await command("delete", given);
      this.onDelete();
      await this.#read(this.#shownCount());
      setText(this.#status, `${count(deleted, "sentence", "sentences")} deleted.`);
      if (document.activeElement === document.body) document.getElementById("main").focus();
    } catch (error) {
      this.#fail(error);
    }
  }

  async #export(kind) {
    setText(this.#status, "Preparing the file …");
    try {
      const lines = await readLog(this.#wanted());
      lines.sort((one, other) => one.seq - other.seq);
      saveFile(kind, lines);
      setText(this.#status, `${count(lines.length, "sentence", "sentences")} saved.`);
    } catch (error) {
      this.#fail(error);
    }
  }
}

/** Return `value` as a cell of CSV. What a spreadsheet would compute is marked as text. */
function cell(value) {
  const text = String((Array.isArray(value) ? value.join(" ") : value) ?? "");
  const formula = /^[=+\-@\t\r]/.test(text) && typeof value !== "number";
  return `"${(formula ? `'${text}` : text).replaceAll('"', '""')}"`;
}

function saveFile(kind, lines) {
  const names = Object.keys(lines[0] || {});
  const text = kind === "csv"
    ? [names.join(","), ...lines.map((one) => names.map((name) => cell(one[name])).join(","))].join("\r\n")
    : lines.map((one) => JSON.stringify(one)).join("\n");
  const type = kind === "csv" ? "text/csv" : "application/x-ndjson";
  const link = element("a", {
    href: URL.createObjectURL(new Blob([text, "\n"], { type })),
    download: `roomscribe-${session.node}-${new Date().toISOString().slice(0, 10)}.${kind}`,
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60e3);
}

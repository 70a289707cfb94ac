// One setting: its label, input, unit, help and mistake.

import { element, fillList, setAttribute } from "./dom.js";
import { correction, notice } from "./text.js";

const ONE_PER_LINE = { list: "One per line", table: "heard = written" };
const TABLE_MISTAKE = "Write each line as: heard = written";

/** Return a setting's value as the text of its input. */
function asText(about, value) {
  if (about.kind === "bool") return value;
  if (about.kind === "list") return value.join("\n");
  if (about.kind === "table") return Object.entries(value).map((pair) => pair.join(" = ")).join("\n");
  return about.blank && value === about.blank[0] ? "" : String(value);
}

/** Return an input's text as the setting's value; null for a malformed table. A malformed number
 * stays a text, which the daemon refuses. */
function asValue(about, text) {
  const { kind, blank } = about;
  if (kind === "int" || kind === "float") {
    if (text.trim() === "" && blank) return blank[0];
    return text.trim() !== "" && isFinite(text) ? Number(text) : text;
  }
  if (!ONE_PER_LINE[kind]) return text;
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  if (kind === "list") return lines;
  const pairs = lines.map((line) => /^(.*?)\s*=\s*(.*)$/.exec(line));
  return pairs.every(Boolean) ? Object.fromEntries(pairs.map(([, heard, written]) => [heard, written])) : null;
}

/** Return the range of a number in words, "" if it needs none. */
function range({ kind, low, high, blank, advanced }) {
  if (!advanced || (kind !== "int" && kind !== "float") || high > 100_000) return "";
  const least = blank && blank[0] === low && low < 0 ? 0 : low; // -1 stands for "automatic"
  return `From ${least} to ${high}.`.replaceAll("-", "−");
}

export class Field {
  #saved = "";
  #isKnown = false; // until the daemon's value is there
  #about;
  #choices;
  #onChange;
  #mistake;

  /** `about` is the server's description; `choices`: [value, text] of a list to choose from. */
  constructor(name, about, { choices, onChange }) {
    this.name = name;
    this.#about = about;
    this.#onChange = onChange;
    this.#choices = choices || (about.choices.length ? about.choices : null);
    const id = `key-${name}`, help = [about.help, range(about)].filter(Boolean).join(" ");
    this.input = this.#makeInput(id);
    setAttribute(this.input, "aria-describedby", help ? `${id}-about ${id}-wrong` : `${id}-wrong`);
    this.#mistake = notice({ id: `${id}-wrong` }, correction);
    const label = element("label", { for: id }, about.title);
    const isNumber = about.kind === "int" || about.kind === "float";
    const input = isNumber ? element("div", { class: "unit" }, this.input, element("span", {}, about.unit)) : this.input;
    this.node = element("div", { class: about.kind === "bool" ? "field check" : "field" },
      about.kind === "bool" ? [input, label] : [label, input], this.#mistake,
      help && element("p", { class: "soft small", id: `${id}-about` }, help));
  }

  #makeInput(id) {
    const { kind, blank, unit, title } = this.#about, number = kind === "int" || kind === "float";
    const changed = () => this.#onChange(this);
    if (ONE_PER_LINE[kind])
      return element("textarea", { id, rows: 4, spellcheck: "false", placeholder: ONE_PER_LINE[kind], oninput: changed });
    if (kind === "bool") return element("input", { id, type: "checkbox", onchange: changed });
    if (this.#choices) return element("select", { id, onchange: changed });
    return element("input", {
      id, type: kind === "password" ? "password" : "text", inputmode: number ? "decimal" : null, spellcheck: "false",
      autocomplete: kind === "password" ? "new-password" : "off", placeholder: blank?.[1], oninput: changed,
      "aria-label": unit ? `${title}, ${unit}` : null,
    });
  }

  /** The input, also to be restored later. */
  get draft() {
    return this.#about.kind === "bool" ? this.input.checked : this.input.value;
  }

  set draft(text) {
    if (this.#about.kind === "bool") this.input.checked = text;
    else if (this.input.value !== text) this.input.value = text;
  }

  get isChanged() {
    return this.draft !== this.#saved;
  }

  /** The input as the daemon takes it; null: see `isWellFormed`. */
  get value() {
    return asValue(this.#about, this.draft);
  }

  /** Take over the daemon's value; unsaved input stays. */
  load(value) {
    const typed = this.#isKnown && this.isChanged;
    this.#isKnown = true;
    const text = asText(this.#about, value);
    this.#saved = text;
    if (this.#choices) this.choose(this.#choices);
    if (!typed) this.draft = text;
  }

  /** Note that the input is saved. A password is not shown again. */
  markSaved() {
    if (this.#about.kind === "password") this.draft = "";
    this.#saved = this.draft;
  }

  /** Show the saved value again. */
  revert() {
    this.draft = this.#saved;
  }

  /** Offer these choices. A value that is not among them stays, marked as not found. */
  choose(choices) {
    this.#choices = choices;
    const chosen = this.input.options.length ? this.input.value : this.#saved;
    const shown = [...choices];
    for (const value of new Set([this.#saved, chosen]))
      if (!shown.some(([one]) => one === value)) shown.push([value, `${value} (not found)`]);
    const key = ([value, text]) => `${value}\n${text}`;
    fillList(this.input, shown, key, ([value, text]) => element("option", { value }, text));
    this.input.value = chosen;
  }

  placeholder(text) {
    setAttribute(this.input, "placeholder", text);
  }

  /** Show what is wrong with the field; "": nothing. */
  showMistake(text) {
    setAttribute(this.input, "aria-invalid", text ? "true" : null);
    this.#mistake.show(text);
  }

  /** Return true for a well-formed table, or any other value; show what is wrong otherwise. */
  isWellFormed() {
    if (this.value !== null) return true;
    this.showMistake(TABLE_MISTAKE);
    return false;
  }
}

/** Show each mistake at its field (a Map by key), or with `showOther` if it has none. Return the fields. */
export function showMistakes(fields, mistakes, showOther) {
  for (const [name, text] of Object.entries(mistakes)) {
    if (fields.has(name)) fields.get(name).showMistake(text);
    else showOther(text);
  }
  return [...fields].filter(([name]) => name in mistakes).map(([, field]) => field); // as the page shows them
}

// The settings: common ones first, one Save for all that changed.

import { call, command } from "./api.js";
import { BROKER, brokerLogin, brokerValues, PUBLISHES } from "./broker.js";
import { button, element, setText } from "./dom.js";
import { Field, showMistakes } from "./field.js";
import { Meter } from "./meter.js";
import { microphoneChoices, microphoneTest, speakerTest } from "./microphone.js";
import { Models } from "./models.js";
import { Phrases } from "./phrases.js";
import { count, megabytes, notice, titles } from "./text.js";

const COLUMNS = [["Microphone", "Model", "Words"], ["Loudspeaker", "Room", "MQTT and Home Assistant", "Log"]];

const languages = new Intl.DisplayNames(["en"], { type: "language" });
const UNNAMED = { ba: "Bashkir", bo: "Tibetan" }; // browsers have no names for them

/** [value, text] of the choices that come before the languages. */
const FIRST_LANGUAGES = [["", "As the model was added"], ["auto", "Detect automatically"]];

/** Unsaved input by key. It survives a change of the view. */
const drafts = new Map();

/** Read the description of each setting, once, and the titles for messages. Raises Refusal. */
let described = null;
export async function describe() {
  if (described) return described;
  const settings = await call("api/keys");
  for (const [name, { title }] of Object.entries(settings)) titles.set(name, `“${title}”`);
  return (described = settings);
}

/** Return the values of all settings by key, the broker's included. */
function flatten({ settings, broker }) {
  const found = Object.fromEntries(Object.entries(settings).map(([name, one]) => [name, one.value]));
  return { ...found, ...brokerValues(broker) };
}

/** Offer the languages of the model in use. A model of one language has no menu. */
function showLanguages(field, models, state) {
  const used = state?.encoder === "fleet" ? null : models.find(({ name }) => name === state?.model);
  const known = used?.languages ?? [];
  field.node.hidden = known.length < 2;
  const named = known.map((code) => [code, UNNAMED[code] ?? languages.of(code)]);
  field.choose([...FIRST_LANGUAGES, ...named.sort(([, one], [, other]) => one.localeCompare(other))]);
}

export class Settings {
  static events = "level";
  #live = { up: true };
  #fields = new Map();
  #meter = new Meter();
  #loading = element("p", { class: "soft" }, "Loading …");
  #problem = notice({ class: "banner bad" });
  #form = element("form", { class: "setup", novalidate: true, onsubmit: (event) => this.#submit(event) });
  #status = element("span", { class: "soft", role: "status" });
  #discard = button("Discard", () => this.#discardAll(), { class: "plain" });
  #save = element("button", { class: "main" }, "Save");
  #bar = element("div", { class: "keep", hidden: true }, this.#status, element("span", { class: "push" }), this.#discard, this.#save);
  #saving = false;
  #notice = "";
  #inUse = element("p", { class: "soft small" });
  #broker = element("div", { class: "broker", role: "group", "aria-label": "Broker" });
  #installed = [];
  #models = new Models((installed) => this.#showModels(installed));
  #test = microphoneTest();
  #speakerTest = speakerTest();

  constructor() {
    this.nodes = [this.#problem, this.#loading, this.#form, new Phrases().node,
      element("p", { class: "soft small" }, element("a", { href: "#first-steps" }, "Show the first steps again"))];
    this.#read();
  }

  update(live) {
    const back = live.up && !this.#live.up;
    this.#live = { ...live }; // the frame changes its own
    if (back) this.#read();
    if (!live.up) this.#problem.show(""); // the frame shows that there is no connection
    setText(this.#inUse, live.state ? `In use: ${live.state.model_title} on ${live.state.encoder}` : "");
    this.#meter.show(live.up && live.state?.status !== "muted" && live.state?.microphone !== "none");
    this.#test.update(live);
    this.#speakerTest.update(live);
    this.#models.update(live);
    this.#showLanguages();
    this.#count();
  }

  close() {
    this.#meter.show(false);
    this.#models.close();
  }

  /** Read everything again; unsaved input stays. After a save the daemon may be loading its settings: no problem. */
  async #read(isSaved = false) {
    try {
      const about = await describe(), settings = await command("settings"), values = flatten(settings);
      if (!this.#fields.size) this.#build(about, values);
      for (const [name, field] of this.#fields) field.load(values[name]);
      this.#fields.get("mqtt.password").placeholder(settings.broker.password ? "unchanged" : "none");
      this.#fields.get("appliance.node")?.placeholder(this.#live.state?.node || "");
      this.#count();
      this.#problem.show("");
      await this.#models.read();
    } catch (error) {
      const isExpected = isSaved || !this.#live.up; // the frame shows that there is no connection
      this.#problem.show(isExpected ? "" : error.message);
    }
    await command("devices").then(({ devices }) => this.#showDevices(devices), () => {});
  }

  #build(about, values) {
    const groups = new Map();
    for (const [name, one] of Object.entries(about)) {
      if (!(name in values)) continue;
      const field = new Field(name, one, { onChange: (changed) => this.#changed(changed), choices: this.#choices(name, values[name]) });
      field.load(values[name]);
      if (drafts.has(name)) field.draft = drafts.get(name);
      this.#fields.set(name, field);
      const group = `${one.advanced}${one.group}`;
      groups.set(group, { ...one, fields: [...(groups.get(group)?.fields || []), field] });
    }
    const advanced = [...groups.values()].filter((group) => group.advanced);
    this.#form.append(
      element("div", { class: "columns" }, COLUMNS.map((titled) =>
        element("div", {}, titled.map((title) => this.#card(title, groups.get(`false${title}`)?.fields || []))))),
      element("details", { class: "card" }, element("summary", {}, element("h2", {}, "Advanced")),
        advanced.map((group) => element("fieldset", {}, element("legend", {}, element("h3", {}, group.group)),
          element("div", { class: "grid" }, group.fields.map((field) => field.node))))),
      this.#bar);
    this.#showLanguages();
    this.#loading.remove();
  }

  #card(title, fields) {
    const inBroker = fields.filter((field) => BROKER.includes(field.name));
    this.#broker.append(...inBroker.map((field) => field.node));
    const nodes = fields.filter((field) => !inBroker.includes(field)).map((field) => field.node);
    if (inBroker.length) nodes.splice(1, 0, this.#broker); // below the switch that shows it
    if (title === "Loudspeaker") nodes.push(...this.#speakerTest.nodes);
    if (title === "Microphone") nodes.push(this.#meter.node, ...this.#test.nodes);
    if (title === "Model") nodes.push(this.#inUse, this.#models.node);
    return element("fieldset", { class: "card" }, element("legend", {}, element("h2", {}, title)), nodes);
  }

  #choices(name, value) {
    if (name === "model.bundle") return [["", "Default"]];
    if (name === "decoder.language") return FIRST_LANGUAGES;
    return name === "capture.device" ? microphoneChoices(value) : null;
  }

  #showModels(installed) {
    const shown = ({ name, title, size_mb, npu }) => [name, `${title} (${size_mb === null ? "damaged" : megabytes(size_mb)}${npu ? ", with NPU" : ""})`];
    this.#fields.get("model.bundle")?.choose([["", "Default"], ...installed.map(shown)]);
    this.#installed = installed;
    this.#showLanguages();
  }

  #showLanguages() {
    const field = this.#fields.get("decoder.language");
    if (field) showLanguages(field, this.#installed, this.#live.state);
  }

  #showDevices(devices) {
    const field = this.#fields.get("capture.device");
    field?.choose(microphoneChoices(field.value, devices));
  }

  get #edited() {
    const publishes = this.#fields.get(PUBLISHES)?.value ?? true;
    return [...this.#fields.values()].filter((field) => field.isChanged && (publishes || !BROKER.includes(field.name)));
  }

  #changed(field) {
    field.showMistake("");
    if (field.isChanged) drafts.set(field.name, field.draft);
    else drafts.delete(field.name);
    this.#show("");
  }

  /** Show a notice beside Save; "" shows the number of changes. */
  #show(notice) {
    this.#notice = notice;
    this.#count();
  }

  #count() {
    const edited = this.#edited.length;
    this.#broker.hidden = this.#fields.get(PUBLISHES)?.value === false;
    setText(this.#status, this.#notice || (edited ? count(edited, "change", "changes") : ""));
    this.#bar.hidden = !edited && !this.#notice;
    this.#discard.hidden = !edited;
    this.#save.hidden = !edited;
    this.#save.disabled = this.#saving || !this.#live.up;
  }

  #discardAll() {
    drafts.clear();
    for (const field of this.#fields.values()) {
      field.showMistake("");
      field.revert();
    }
    this.#show("");
    document.getElementById("main").focus(); // the button is gone
  }

  async #submit(event) {
    event.preventDefault();
    if (this.#saving || !this.#edited.length || !this.#live.up) return;
    for (const field of this.#fields.values()) field.showMistake("");
    const malformed = this.#edited.filter((field) => !field.isWellFormed());
    if (malformed.length) return this.#refuse(malformed);
    this.#saving = true;
    await this.#send();
    this.#saving = false;
    this.#count();
  }

  /** Send all changes at once: the daemon saves everything or nothing. */
  async #send() {
    const edited = this.#edited, others = edited.filter(({ name }) => !BROKER.includes(name));
    const set = Object.fromEntries(others.map((field) => [field.name, field.value]));
    const isBroker = others.length < edited.length;
    this.#show(isBroker ? "Connecting to the broker …" : "Saving …");
    try {
      // with the other settings that are saved together with it
      const login = () => ({ ...brokerLogin(this.#fields), set: { [PUBLISHES]: this.#fields.get(PUBLISHES).value, ...set } });
      const answer = isBroker ? await command("broker", login()) : await command("configure", { set });
      if (answer.mistakes) return this.#refuse(showMistakes(this.#fields, answer.mistakes, (text) => this.#problem.show(text)));
      for (const field of edited) field.markSaved();
      drafts.clear();
      this.#show("Saved.");
      await this.#read(true); // the values as the daemon has them
    } catch (error) {
      this.#show("");
      this.#problem.show(this.#live.up ? error.message : ""); // the frame shows that there is no connection
    }
  }

  #refuse(fields) {
    this.#show("Nothing was saved. Correct the marked fields.");
    const [first] = fields;
    if (!first) return;
    const details = first.node.closest("details");
    if (details) details.open = true;
    first.input.focus();
  }
}

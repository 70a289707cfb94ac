// The second step: the broker that gets the sentences, tried before it is saved; or none for now.

import { command } from "./api.js";
import { brokerLogin, brokerValues, PUBLISHES } from "./broker.js";
import { button, element, setText } from "./dom.js";
import { Field, showMistakes } from "./field.js";
import { describe } from "./settings.js";
import { notice } from "./text.js";

export class BrokerStep {
  #next;
  #publishes = false;
  #fields = new Map();
  #later = element("p", { class: "soft small" });
  #wrong = notice();
  #status = element("p", { class: "soft", role: "status" });
  #group = element("div", { class: "broker", role: "group", "aria-label": "Broker" });
  #connect = button("Connect", () => this.#try(), { class: "main" });
  #notNow = button("Not now", () => this.#skip());

  constructor({ next }) {
    this.#next = next;
    // Enter in a field connects, too
    const form = element("form", { class: "setup", novalidate: true, onsubmit: (event) => (event.preventDefault(), this.#connect.click()) },
      this.#group, element("button", { hidden: true }));
    this.nodes = [
      element("p", {}, "Roomscribe publishes each sentence to an MQTT broker, such as the one that Home Assistant uses. Enter its address and login."),
      form, this.#wrong, this.#status, this.#later,
    ];
    this.actions = [this.#notNow, this.#connect];
    this.#read();
  }

  #read() {
    return this.#attempt(async () => {
      const about = await describe(), { settings, broker } = await command("settings");
      this.#publishes = settings[PUBLISHES].value;
      for (const [name, value] of Object.entries(brokerValues(broker))) {
        const field = new Field(name, about[name], { onChange: (changed) => changed.showMistake("") });
        field.load(value);
        this.#fields.set(name, field);
      }
      this.#fields.get("mqtt.password").placeholder(broker.password ? "unchanged" : "none");
      this.#group.replaceChildren(...[...this.#fields.values()].map((field) => field.node));
      setText(this.#later, this.#publishes
        ? "“Not now” switches publishing off. Sentences are then only in the log of this appliance, until you switch it on under Settings."
        : "With “Not now”, sentences are only in the log of this appliance. You can enter a broker later, under Settings.");
    });
  }

  async #attempt(action) {
    if (!(await this.#wrong.attempt(action))) setText(this.#status, "");
  }

  /** Save the login if the broker accepts it, and go on. */
  #try() {
    if (!this.#fields.size) return this.#read(); // the settings could not be read
    for (const field of this.#fields.values()) field.showMistake("");
    setText(this.#status, "Connecting to the broker …");
    return this.#attempt(async () => {
      const { mistakes } = await command("broker", { ...brokerLogin(this.#fields), set: { [PUBLISHES]: true } });
      if (mistakes) this.#refuse(mistakes);
      else this.#next();
    });
  }

  /** Show each mistake at its field, or below the fields if it has none. */
  #refuse(mistakes) {
    const [first] = showMistakes(this.#fields, mistakes, (text) => this.#wrong.show(text));
    setText(this.#status, "Nothing was saved. Correct it, or press “Not now”.");
    first?.input.focus();
  }

  /** Go on without a broker; one that is not there is no problem then. */
  #skip() {
    setText(this.#status, "");
    return this.#attempt(async () => {
      const { mistakes = {} } = this.#publishes ? await command("configure", { set: { [PUBLISHES]: false } }) : {};
      const [mistake] = Object.values(mistakes);
      if (mistake) this.#wrong.show(mistake);
      else this.#next();
    });
  }
}

// The first steps: microphone, broker, a first sentence. They are shown until somebody has finished
// or skipped them, in whatever browser; Settings opens them again.

import { command, session } from "./api.js";
import { BrokerStep } from "./broker-step.js";
import { button, element, setText } from "./dom.js";
import { MicrophoneStep } from "./microphone-step.js";
import { SentenceStep } from "./sentence-step.js";
import { notice } from "./text.js";

const STEPS = [["Microphone", MicrophoneStep], ["Broker", BrokerStep], ["A first sentence", SentenceStep]];

export class FirstSteps {
  static events = "level";
  #mute;
  #live = { up: true, state: null, lines: [] };
  #number = 0;
  #step = null;
  #heading = element("h2", { id: "step", tabindex: -1 });
  #body = element("div", { class: "setup" });
  #problem = notice();
  #back = button("Back", () => this.#go(this.#number - 1));
  #actions = element("span", { class: "row" });
  #skip = button("Skip the first steps", () => this.#finish(), { class: "plain" });

  /** `mute(on)` mutes the microphone or opens it; it raises Refusal. */
  constructor({ mute }) {
    this.#mute = mute;
    this.nodes = [
      element("section", { class: "card steps", "aria-labelledby": "step" },
        this.#heading, this.#body, this.#problem,
        element("div", { class: "row" }, this.#skip, element("span", { class: "row push" }, this.#back, this.#actions))),
    ];
    this.#go(0, false);
  }

  update(live) {
    this.#live = live;
    this.#step.update?.(live);
  }

  close() {
    this.#step.close?.();
  }

  #go(number, moved = true) {
    const [title, Step] = STEPS[number];
    this.#step?.close?.();
    this.#number = number;
    this.#problem.show("");
    this.#step = new Step({
      mute: this.#mute,
      next: () => (number + 1 < STEPS.length ? this.#go(number + 1) : this.#finish()),
    });
    setText(this.#heading, `Step ${number + 1} of ${STEPS.length}: ${title}`);
    this.#back.hidden = !number;
    this.#body.replaceChildren(...this.#step.nodes);
    this.#actions.replaceChildren(...this.#step.actions);
    this.#step.update?.(this.#live);
    if (moved) this.#heading.focus(); // the pressed button is gone
  }

  async #finish() {
    if (!(await this.#problem.attempt(() => command("end_first_steps")))) return;
    session.first_steps = false;
    location.hash = "live";
  }
}

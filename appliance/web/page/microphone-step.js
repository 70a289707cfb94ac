// The first step: choose a microphone, and see that its level moves.

import { command } from "./api.js";
import { button, element, setText } from "./dom.js";
import { Field } from "./field.js";
import { microphoneChoices, microphoneTest, MicrophoneWatch } from "./microphone.js";
import { describe } from "./settings.js";
import { notice } from "./text.js";

const DEVICE = "capture.device";

export class MicrophoneStep {
  #up = true;
  #state = "";
  #next;
  #field = null;
  #place = element("div");
  #watch;
  #test = microphoneTest();
  #list = button("Look for microphones again", () => this.#read(), { class: "plain", hidden: true });
  #wrong = notice();
  #status = element("p", { class: "soft", role: "status" });
  #main = button("Next", () => this.#save(), { class: "main" });

  constructor({ mute, next }) {
    this.#next = next;
    this.#watch = new MicrophoneWatch(mute, "Plug one in, or choose another one.");
    this.nodes = [
      element("p", {}, "Choose the microphone of this room and speak. The bar should move while you do."),
      this.#place, element("div", { class: "row" }, this.#list), this.#wrong, ...this.#watch.nodes, ...this.#test.nodes, this.#status,
    ];
    this.actions = [this.#main];
    this.#read();
  }

  update(live) {
    const state = `${live.up} ${live.state?.microphone}`;
    this.#up = live.up;
    this.#watch.update(live);
    this.#test.update(live);
    this.#show();
    if (this.#state && live.up && state !== this.#state) this.#read(); // one has come or gone
    this.#state = state;
  }

  close() {
    this.#watch.close();
  }

  /** Read the setting and the microphones that are there. */
  async #read() {
    try {
      const about = await describe(), { settings } = await command("settings"), { value } = settings[DEVICE];
      if (!this.#field) {
        this.#field = new Field(DEVICE, about[DEVICE], { choices: microphoneChoices(value), onChange: () => this.#show() });
        this.#place.append(this.#field.node);
      }
      this.#field.load(value);
      const { devices } = await command("devices");
      this.#field.choose(microphoneChoices(this.#field.value, devices));
      this.#list.hidden = devices.length > 0;
      this.#wrong.show(devices.length || !this.#watch.isMuted ? "" : "No microphone found. Plug one in, then look again.");
    } catch (error) {
      this.#list.hidden = false;
      this.#wrong.show(this.#up ? error.message : ""); // the frame shows that there is no connection
    }
    this.#show();
  }

  #show() {
    setText(this.#main, this.#field?.isChanged ? "Use this microphone" : "Next");
  }

  /** Save another choice and stay, so that its level can be seen; without one, go on. */
  async #save() {
    if (!this.#field?.isChanged) return this.#next();
    this.#field.showMistake("");
    setText(this.#status, "Saving …");
    const isAnswered = await this.#wrong.attempt(async () => {
      const { mistakes } = await command("configure", { set: { [DEVICE]: this.#field.value } });
      if (mistakes) this.#field.showMistake(mistakes[DEVICE] ?? Object.values(mistakes)[0]);
      else this.#field.markSaved();
      setText(this.#status, mistakes ? "Nothing was saved." : "Saved. Speak, and see that the bar moves.");
    });
    if (!isAnswered) setText(this.#status, "");
    this.#show();
  }
}

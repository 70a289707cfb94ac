// The expected sentences: edit them, and try them with the microphone before they are saved.

import { command } from "./api.js";
import { button, element, setAttribute, setText } from "./dom.js";
import { Trial } from "./microphone.js";
import { message, notice, percent } from "./text.js";

const TRY_S = 5;

export class Phrases {
  #saved = null;
  #own = false;
  #isOpen = false;
  #input = element("textarea", {
    id: "phrases", rows: 12, spellcheck: "false", autocapitalize: "off", "aria-describedby": "phrases-about phrases-wrong", oninput: () => this.#draw(),
  });
  #wrong = notice({ id: "phrases-wrong" });
  #notice = element("p", { class: "soft small", role: "status" });
  #trial = new Trial("Say it now", "Say a sentence …", () => this.#listen());
  #save = button("Save sentences", () => this.#store(this.#input.value), { class: "main" });
  #reset = button("Use the original ones", () => this.#store(null), { class: "plain", hidden: true });
  #about = element("p", { class: "soft small", id: "phrases-about" },
    "Sentences that people say here. Roomscribe reports which one was most likely meant. Write (on|off) for alternatives, [the] for an optional word and {area} for one of the values under [slots].");
  #editor = element("div", { class: "field" }, element("label", { for: "phrases" }, "Sentences by name, and slots"), this.#input, this.#wrong);
  #closed = element("p", { class: "soft", hidden: true });
  node = element("details", { class: "card", ontoggle: () => this.node.open && !this.#isOpen && this.#read() },
    element("summary", {}, element("h2", {}, "Expected sentences")),
    this.#about, this.#closed, this.#editor,
    element("div", { class: "row" }, this.#trial.button, this.#save, this.#reset), this.#notice, this.#trial.result);

  async #read() {
    try {
      const { text, file, own } = await command("phrases");
      this.#isOpen = true;
      this.#saved = text;
      this.#own = own;
      const isLong = text === null;
      this.#editor.hidden = isLong;
      this.#closed.hidden = !isLong;
      setText(this.#closed, isLong ? `The file ${file} is too long for this page. Edit it on the appliance.` : "");
      this.#input.value = text ?? "";
      this.#draw();
    } catch (error) {
      this.#fail(error);
    }
  }

  #draw() {
    this.#reset.hidden = !this.#own;
    this.#save.disabled = this.#saved === null || this.#input.value === this.#saved;
    this.#showWrong("");
  }

  #showWrong(text) {
    setAttribute(this.#input, "aria-invalid", text ? "true" : null);
    this.#wrong.show(text);
  }

  #fail(error) {
    setText(this.#notice, "");
    if (this.#editor.hidden) this.#notice.replaceChildren(...message(error.message));
    else this.#showWrong(error.message);
  }

  async #store(text) {
    setText(this.#notice, "");
    try {
      await command("phrases_save", { text });
      await this.#read();
      setText(this.#notice, "Saved.");
    } catch (error) {
      this.#fail(error);
    }
  }

  /** Record a sentence, and show the three most likely of those in the editor. */
  async #listen() {
    this.#showWrong("");
    const edited = this.#saved === null ? {} : { phrases: this.#input.value };
    try {
      const { words, candidates } = await command("microphone_test", { seconds: TRY_S, ...edited });
      const rows = candidates.map((one) =>
        element("li", {}, element("q", {}, one.phrase), element("strong", { class: "number" }, percent(one.phrase_confidence ?? 0))));
      return [
        element("p", { class: "soft" }, words ? `Heard: “${words}”` : "Nothing was heard."),
        rows.length ? element("ol", { class: "offers" }, rows) : element("p", {}, words ? "None of the sentences is like this." : ""),
      ];
    } catch (error) {
      this.#fail(error);
      return [];
    }
  }
}

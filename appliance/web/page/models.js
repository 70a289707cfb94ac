// The models that can be added: their sizes, the progress of a download, why one failed.

import { command } from "./api.js";
import { button, element, setText } from "./dom.js";
import { megabytes, message } from "./text.js";

const EVERY_MS = 1000;

function sizes({ download_mb, begun_mb, size_mb, memory_mb, fits }) {
  const begun = begun_mb ? `, ${megabytes(begun_mb)} of it done` : "";
  const memory = `${megabytes(memory_mb)} of memory${fits ? "" : ", more than is free"}`;
  return `${megabytes(download_mb)} download${begun}. Takes ${megabytes(size_mb)} on disk and ${memory}.`;
}

export class Models {
  #show;
  #up = true;
  #models = null;
  #refused = null;
  #shown = "";
  #timer;
  #offers = element("div", { class: "models" });
  #step = element("p", { class: "soft small number" });
  #progress = element("progress", { "aria-labelledby": "adding", max: 1 });
  #title = element("strong");
  #adding = element("div", { class: "field", role: "group", "aria-labelledby": "adding", hidden: true },
    element("p", { id: "adding" }, this.#title), this.#progress, this.#step,
    element("div", { class: "row" },
      button("Cancel", () => this.#run("model_cancel")),
      element("span", { class: "soft small" }, "You can continue the download later.")));
  node = element("div", { class: "models" }, this.#adding, this.#offers);

  /** `show(installed)` is given the installed models whenever they are read. */
  constructor(show) {
    this.#show = show;
    this.#timer = setInterval(() => this.#models?.adding && this.read().catch(() => {}), EVERY_MS);
  }

  close() {
    clearInterval(this.#timer);
  }

  /** Read the models and show them. Raises Refusal. */
  async read() {
    this.#models = await command("models");
    this.#show(this.#models.models);
    this.#draw();
  }

  update({ up }) {
    this.#up = up;
    this.#draw();
  }

  async #run(name, model) {
    this.#refused = null;
    try {
      await command(name, model ? { model } : {});
      await this.read();
    } catch (error) {
      this.#refused = { name: model, error: error.message };
      this.#draw();
    }
  }

  #draw() {
    if (!this.#models) return;
    const { adding, offered, failed, possible } = this.#models;
    this.#adding.hidden = !adding;
    this.#offers.hidden = Boolean(adding);
    if (adding) this.#drawProgress(adding);
    const shown = JSON.stringify([offered, failed, possible, this.#refused, this.#up]);
    if (shown === this.#shown) return; // unchanged: keep the focus
    this.#shown = shown;
    this.#offers.replaceChildren(...this.#offerNodes(offered, this.#refused || failed, possible));
  }

  #drawProgress({ title, doing, done, total }) {
    setText(this.#title, `Adding ${title}`);
    if (total) this.#progress.value = done / total;
    else this.#progress.removeAttribute("value");
    setText(this.#step, total ? `${doing}: ${Math.floor((100 * done) / total)} % of all` : doing);
  }

  #offerNodes(offered, failed, possible) {
    const row = (one) =>
      element("li", {},
        element("div", {}, element("strong", {}, one.title), element("span", { class: "soft small" }, sizes(one))),
        button(one.begun_mb ? "Continue" : "Add", () => this.#run("model_add", one.name), {
          disabled: !possible || !one.fits || !this.#up, "aria-label": `${one.begun_mb ? "Continue" : "Add"} ${one.title}`,
        }),
        failed?.name === one.name && element("p", { class: "wrong", role: "alert" }, message(failed.error)));
    const nodes = offered.length ? [element("h3", {}, "More models"), element("ul", { class: "offers" }, offered.map(row))] : [];
    if (!possible)
      nodes.push(element("p", { class: "soft small" }, "To add models here, run ", element("code", {}, "sudo roomscribe web enable"),
        " on the appliance once. Or run ", element("code", {}, "sudo roomscribe model add"), "."));
    return nodes;
  }
}

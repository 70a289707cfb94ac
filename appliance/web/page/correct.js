// Correct a sentence: what was really said, and what the appliance may learn from the difference.

import { command } from "./api.js";
import { button, element, openDialog, setText } from "./dom.js";
import { notice } from "./text.js";

const LETTERS = 1000;

/** Open the dialog for a sentence. The event `correction` then changes its row. */
export function correctSentence(one) {
  const input = element("input", {
    id: "said", type: "text", maxlength: LETTERS, required: true, autocomplete: "off", autofocus: true, dir: "auto",
    lang: one.language || null, "aria-describedby": "said-wrong",
  });
  input.value = one.correction ?? one.text;
  const wrong = notice({ id: "said-wrong" });
  const close = () => {
    remove();
    document.querySelector(`[data-seq="${one.seq}"] button`)?.focus(); // the row was made anew meanwhile
  };
  const save = (text) => wrong.attempt(async () => {
    const { offers } = await command("correct", { transcript_id: one.id, text });
    const choices = learnable(offers, wrong);
    if (!choices.length) return close();
    form.replaceChildren(element("p", { role: "status" }, "Saved. Is this wrong often? Choose what Roomscribe should learn."),
      element("ul", { class: "offers" }, choices.map((choice) => element("li", {}, choice))), wrong,
      element("div", { class: "row end" }, button("Done", close, { class: "main" })));
    choices[0].focus();
  });

  const isExpected = one.phrase && one.phrase !== one.text.toLowerCase();
  const form = element("form", { onsubmit: (event) => (event.preventDefault(), save(input.value.trim())) },
    element("p", {}, "Heard: ", element("bdi", {}, one.text)),
    element("div", { class: "field" }, element("label", { for: "said" }, "What was really said"), input, wrong),
    isExpected && element("div", { class: "row" },
      button(`Use “${one.phrase}”`, () => ((input.value = one.phrase), input.focus()), { class: "plain" }),
      element("span", { class: "soft small" }, "the most likely expected sentence")),
    element("div", { class: "row end" },
      one.correction && button("Remove correction", () => save(null), { class: "plain" }),
      button("Cancel", close), element("button", { type: "submit", class: "main" }, "Save")));
  const remove = openDialog("Correct this sentence", close, form);
  input.select();
}

/** Return a button for each thing to learn. */
function learnable({ words, replace }, wrong) {
  const learn = (text, given) => {
    const made = button(text, async () => {
      if (made.dataset.learnt || !(await wrong.attempt(() => command("learn", given)))) return;
      made.dataset.learnt = "true";
      setText(made, `✓ ${text}`);
    });
    return made;
  };
  return [
    ...words.map((word) => learn(`Add “${word}” to the vocabulary`, { word })),
    ...replace.map(({ heard, written }) => learn(`Always write “${written}” for “${heard}”`, { heard, written })),
  ];
}

// One sentence of the log, as the live view and the history show it.

import { correctSentence } from "./correct.js";
import { button, element, icon } from "./dom.js";
import { clock, flag, noAct, percent, seconds } from "./text.js";

const LIKELY = 0.5; // a less confident match is not shown
const letters = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, " ").trim();

/** What makes two rows of the same sentence differ. */
export const sentenceKey = (one) => `s${one.seq} ${one.heard_better_by ?? ""} ${one.heard_also ?? ""} ${one.correction ?? ""}`;

/** Return which room may act on a sentence that several rooms heard; empty for one that only this room heard. */
function otherRooms({ heard_better_by: better, heard_also: also }) {
  if (better) return `Heard better in ${better}. Only that room may act on it.`;
  return also?.length ? `Also heard in ${also.join(", ")}. Only this room may act on it.` : "";
}

/** Return a sentence as a list's item, with a button to correct it; with `onDelete` also to delete it. */
export function sentenceRow(one, onDelete) {
  const isLikely = one.phrase && (one.phrase_confidence ?? 1) >= LIKELY;
  const differs = isLikely && letters(one.phrase) !== letters(one.text);
  return element(
    "li", { "data-seq": one.seq },
    element("time", { datetime: one.start }, clock(one.start)),
    element("p", { lang: one.language || null, dir: "auto" }, one.text),
    element("div", { class: "tools" },
      button(icon("pen"), () => correctSentence(one), { class: "plain", "aria-label": `Correct: ${one.text}` }),
      onDelete && button(icon("bin"), onDelete, { class: "plain", "aria-label": `Delete: ${one.text}` })),
    one.correction && element("p", { class: "expected" }, "Said: ", element("q", { lang: one.language || null }, one.correction)),
    differs && element("p", { class: "expected" },
      "Matches: ", element("q", {}, one.phrase), one.phrase_confidence ? ` ${percent(one.phrase_confidence)}` : ""),
    !one.acts && element("p", { class: "expected" }, `Nothing acts on it: ${noAct(one.acts_reason)}.`),
    otherRooms(one) && element("p", { class: "expected" }, otherRooms(one)),
    element("div", { class: "about number" },
      element("span", {}, one.confidence === null ? "" : `${percent(one.confidence)} sure`),
      element("span", {}, `after ${seconds(one.latency_ms)}`),
      (one.flags || []).filter((name) => name !== one.acts_reason).map((name) => element("span", { class: "chip" }, flag(name)))),
  );
}

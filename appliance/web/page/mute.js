// Mute for a while: how it ends, and until when it lasts.

import { button, element } from "./dom.js";
import { clock, dayOf } from "./text.js";

const ENDS = { "30m": "Mute for 30 minutes", tomorrow: "Mute until tomorrow" };

/** Return the buttons that mute for a while; `press(end)` is an async function. */
export const muteForAWhile = (press) =>
  element("div", { class: "row whole" },
    Object.entries(ENDS).map(([end, text]) => button(text, () => press(end), { class: "plain small" })));

/** Return " until 06:00", with the day if that is not today; "" for a mute without an end. */
export function mutedUntil({ muted_until: end }) {
  if (!end) return "";
  const isToday = dayOf(end) === dayOf(Date.now());
  const day = isToday ? "" : `${new Date(end).toLocaleDateString("en", { weekday: "long" })} `;
  return ` until ${day}${clock(end, false)}`;
}

// How times, numbers and the daemon's messages are shown.

import { element } from "./dom.js";

const REASONS = {
  too_short: "too short", no_speech: "no speech", reference: "played by the loudspeakers",
  repetition: "repetition", low_confidence: "too unsure", overload: "too much at once",
  failed: "the model failed", set_aside: "it crashed the appliance each time",
};
const FLAGS = {
  low_confidence: "unsure", unsure_to_act: "too unsure to act", repetition: "repeats itself",
  cut_at_window: "cut off", clipped: "too loud", gap: "gap in the sound", interrupted: "interrupted",
  token_limit: "cut off", media: "a media player plays", own_voice: "said by a loudspeaker",
  guarded: "not sure enough for a lock, door, alarm or valve",
};
const NO_ACT = {
  satellite: "a voice satellite's own pipeline does", late: "it came too late", part: "it is a part of a longer utterance",
  unsure_to_act: "too unsure without the address phrase",
  media: "a media player plays, and the address phrase is missing",
};
export const DAY_MS = 86400e3;

/** What a message shows in place of a configuration key. */
export const titles = new Map();

export const reason = (name) => REASONS[name] || readable(name).toLowerCase();
export const flag = (name) => FLAGS[name] || readable(name).toLowerCase();

/** Return why nothing acts on a sentence. */
export const noAct = (name) => NO_ACT[name] || flag(name);

/** Return a name of the program as words. */
export const readable = (name) => (name.charAt(0).toUpperCase() + name.slice(1)).replaceAll("_", " ");

export const clock = (time, withSeconds = true) =>
  new Date(time).toLocaleTimeString([], {
    hourCycle: "h23", hour: "2-digit", minute: "2-digit", ...(withSeconds ? { second: "2-digit" } : {}),
  });

/** Return the first millisecond of the day of `time`, local time. */
export function dayOf(time) {
  const at = new Date(time);
  return new Date(at.getFullYear(), at.getMonth(), at.getDate()).getTime();
}

/** Return " until 06:00", with the day if that is not today; "" for a mute without an end. */
export function mutedUntil({ muted_until: end }) {
  if (!end) return "";
  const isToday = dayOf(end) === dayOf(Date.now());
  const day = isToday ? "" : `${new Date(end).toLocaleDateString("en", { weekday: "long" })} `;
  return ` until ${day}${clock(end, false)}`;
}

export function dayName(day) {
  const ago = Math.round((dayOf(Date.now()) - day) / DAY_MS);
  if (ago === 0 || ago === 1) return ago ? "Yesterday" : "Today";
  return new Date(day).toLocaleDateString([], { weekday: "long", day: "numeric", month: "long", year: "numeric" });
}

export const seconds = (ms) => (ms === null || ms === undefined ? "–" : `${(ms / 1000).toFixed(2)} s`);
export const percent = (share) => `${Math.round(share * 100)} %`;
export const megabytes = (mb) => (mb === null ? "" : mb < 1000 ? `${Math.round(mb)} MB` : `${(mb / 1000).toFixed(1)} GB`);
export const count = (number, one, many) => `${number} ${number === 1 ? one : many}`;

export function duration(s) {
  if (s === null || s === undefined) return "–";
  const [days, hours, minutes] = [s / 86400, (s / 3600) % 24, (s / 60) % 60].map(Math.floor);
  return days ? `${days} d ${hours} h` : hours ? `${hours} h ${minutes} min` : `${minutes} min`;
}

const withTitles = (text) =>
  text.replace(/\b[a-z]+\.[a-z_]+\b/g, (name) => titles.get(name) ?? name);
const asSentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** Return a message of the daemon as nodes: commands as code, keys by their title on this page, and
 * no numbers of the system's errors. */
export const message = (text) =>
  asSentence(String(text).replaceAll(/\[Errno -?\d+\] ?/g, "")).split("`").map((part, index) =>
    index % 2 && !titles.has(part) ? element("code", {}, part) : withTitles(part),
  );

/** Return a place for what is wrong. `show(text)` shows it, "" hides it; the same text is not read
 * aloud twice. `attempt(action)` runs an async function, shows its refusal, and returns true if there is none. */
export function notice(attributes = {}, asNodes = message) {
  const node = element("p", { class: "wrong", role: "alert", ...attributes, hidden: true });
  let shown = "";
  node.show = (text) => {
    if (text !== shown) node.replaceChildren(...(text ? asNodes(text) : []));
    shown = text;
    node.hidden = !text;
  };
  node.attempt = async (action) => {
    node.show("");
    try {
      await action();
      return true;
    } catch (error) {
      node.show(error.message);
      return false;
    }
  };
  return node;
}

/** Return what to enter, for a refused setting. The daemon's messages have the form "expected X,
 * found Y; did you mean Z?", perhaps after a file and a key. */
export function correction(text) {
  const found = /(?:^|: )expected (.+?), found .*?(?:; did you mean (.+)\?)?$/s.exec(text);
  if (!found) return message(text);
  return message(`Enter ${found[1]}.${found[2] ? ` Did you mean ${found[2]}?` : ""}`);
}

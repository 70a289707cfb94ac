// Sentences per hour and per day: bars, and the same numbers as a table.

import { command } from "./api.js";
import { Chart, roundUp } from "./chart.js";
import { element } from "./dom.js";
import { clock, count, message } from "./text.js";

const HOURS = 24, DAYS = 30, HOUR_MS = 3600e3;
const TOPS = [4, 10, 20, 40, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 40000, 100000, 200000, 400000, 1e6];

/** Return where the last 24 hours begin and end, the present one included, in milliseconds. */
export function hourTimes(now) {
  // from the clock's minutes, not by its hour: that comes twice when summer time ends
  const start = now.getTime() - (now.getMinutes() * 60 + now.getSeconds()) * 1000 - now.getMilliseconds();
  return Array.from({ length: HOURS + 1 }, (_, index) => start + (index + 1 - HOURS) * HOUR_MS);
}

/** Return where the last 30 days begin and end, today included, in milliseconds; some have 23 or 25 hours. */
export function dayTimes(now) {
  const day = (index) => new Date(now.getFullYear(), now.getMonth(), now.getDate() + index + 1 - DAYS).getTime();
  return Array.from({ length: DAYS + 1 }, (_, index) => day(index));
}

const shortDay = (ms) => new Date(ms).toLocaleDateString([], { day: "numeric", month: "short" });
const longDay = (ms) => new Date(ms).toLocaleDateString([], { weekday: "short", day: "numeric", month: "short" });
const span = (from, to) => `${clock(from, false)} to ${clock(to, false)}`;

const HOURLY = { id: "hourly", unit: "hour", title: "Sentences per hour, last 24 hours", times: hourTimes, tick: (ms) => clock(ms, false), name: span, every: [6, 12] };
const DAILY = { id: "daily", unit: "day", title: "Sentences per day, last 30 days", times: dayTimes, tick: shortDay, name: longDay, every: [7, 14] };

class CountChart {
  #about;
  #chart = new Chart();
  #note = element("p", { class: "soft" }, "Loading …");
  #rows = element("tbody");
  #table;

  constructor(about) {
    this.#about = about;
    this.#chart.node.hidden = true;
    this.#table = element("details", { hidden: true }, element("summary", {}, "Show as a table"),
      element("table", { class: "number" }, element("caption", { class: "hidden" }, about.title),
        element("thead", {}, element("tr", {}, element("th", { scope: "col" }, about.unit === "day" ? "Day" : "Hour"), element("th", { scope: "col" }, "Sentences"))),
        this.#rows));
    this.node = element("section", { class: "card", "aria-labelledby": about.id },
      element("h2", { id: about.id }, about.title), this.#note, this.#chart.node, this.#table);
  }

  close() {
    this.#chart.close();
  }

  /** Count the sentences and show them. Raises Refusal. */
  async read() {
    const times = this.#about.times(new Date());
    const { counts } = await command("count", { times: times.map((ms) => new Date(ms).toISOString()) });
    this.#note.hidden = true;
    this.#table.hidden = this.#chart.node.hidden = false;
    this.#chart.show(this.#content(times, counts));
    this.#rows.replaceChildren(...counts.map((number, index) =>
      element("tr", {}, element("th", { scope: "row" }, this.#about.name(times[index], times[index + 1])), element("td", {}, number))));
  }

  /** Show why the sentences could not be counted, unless older counts are shown. */
  fail(error) {
    if (!this.#note.hidden) this.#note.replaceChildren(...message(error.message));
  }

  #content(times, counts) {
    const { name, tick, unit, every } = this.#about;
    const sum = counts.reduce((total, one) => total + one, 0), most = Math.max(...counts), at = counts.indexOf(most);
    const busiest = sum ? ` The most in one ${unit}: ${most} (${name(times[at], times[at + 1])}).` : "";
    return {
      label: `${count(sum, "sentence", "sentences")} in ${counts.length} ${unit}s.${busiest} Deleted sentences are not counted.`,
      unit: String,
      top: roundUp(TOPS, most),
      axis: (isNarrow) => {
        const step = every[Number(isNarrow)];
        // counted from the end, so that the newest one has its label
        const ticks = counts.map((_, index) => {
          const isLast = index === counts.length - 1;
          // an hour's label is at its beginning, a day's in its middle
          const ms = unit === "hour" ? times[index] : isLast ? times[index + 1] : (times[index] + times[index + 1]) / 2;
          return [ms, tick(times[index]), isLast ? "end" : "middle"];
        });
        return { from: times[0], to: times.at(-1), ticks: ticks.filter((_, index) => (counts.length - 1 - index) % step === 0) };
      },
      draw: (x, y) => [element("path", { class: "bars", d: counts.map((number, index) => {
        if (!number) return "";
        const left = x(times[index]), right = x(times[index + 1]), gap = (right - left) * 0.15;
        return `M${(left + gap).toFixed(1)} ${y(0)}V${y(number).toFixed(1)}H${(right - gap).toFixed(1)}V${y(0)}Z`;
      }).join("") })],
    };
  }
}

export class SentenceCounts {
  #charts = [new CountChart(HOURLY), new CountChart(DAILY)];
  node = element("div", { class: "columns" }, this.#charts.map(({ node }) => node));

  async read() {
    for (const chart of this.#charts) await chart.read().catch((error) => chart.fail(error));
  }

  close() {
    for (const chart of this.#charts) chart.close();
  }
}

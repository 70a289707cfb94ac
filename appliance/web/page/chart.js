// A chart over time, drawn at the size that it is shown at, so that its labels keep theirs.

import { element, setText } from "./dom.js";
import { clock, DAY_MS } from "./text.js";

const LEFT = 54, RIGHT = 14, TOP = 10, BOTTOM = 30; // pixels around the drawing
const NARROW = 480;

/** Return the first of `steps` that is at least `value`. */
export const roundUp = (steps, value) => steps.find((step) => step >= value) || value;

/** Return the axis of the last 24 hours. */
function lastDay(isNarrow) {
  const to = Date.now();
  const tick = (ago) => [to - ago * 3600e3, ago ? clock(to - ago * 3600e3, false) : "now", ago === 24 ? "start" : ago ? "middle" : "end"];
  return { from: to - DAY_MS, to, ticks: (isNarrow ? [24, 12, 0] : [24, 18, 12, 6, 0]).map(tick) };
}

export class Chart {
  #svg = element("svg", { role: "img" });
  #caption = element("figcaption", { class: "soft small" });
  #content = null;
  #watch = new ResizeObserver(() => this.#draw());
  node = element("figure", { class: "chart" }, this.#svg, this.#caption);

  constructor() {
    this.#watch.observe(this.node);
  }

  close() {
    this.#watch.disconnect();
  }

  /** Show `content`: `label` in words, the scale from 0 to `top` with `unit(value)` as its text,
   * and `draw(x, y, ends)`, which returns nodes; `ends` are the left and right edge. `axis(isNarrow)`
   * returns the times `from` and `to`, and `ticks`: time, text and anchor; the last 24 hours if it is missing. */
  show(content) {
    this.#content = content;
    setText(this.#caption, content.label);
    this.#svg.setAttribute("aria-label", content.label);
    this.#draw();
  }

  #draw() {
    const width = Math.floor(this.node.clientWidth);
    if (!this.#content || !width) return;
    const isNarrow = width < NARROW, height = isNarrow ? 190 : 220, { top, unit, draw, axis = lastDay } = this.#content;
    const { from, to, ticks } = axis(isNarrow);
    const ends = [LEFT, width - RIGHT], bottom = height - BOTTOM;
    const x = (ms) => ends[0] + ((ms - from) / (to - from)) * (ends[1] - ends[0]);
    const y = (value) => TOP + (1 - Math.min(value, top) / top) * (bottom - TOP);
    const line = (value) => [
      element("line", { class: "grid", x1: ends[0], x2: ends[1], y1: y(value), y2: y(value) }),
      element("text", { x: ends[0] - 8, y: y(value) + 4, "text-anchor": "end" }, unit(value)),
    ];
    const tick = ([at, text, anchor]) => element("text", { x: x(at), y: height - 8, "text-anchor": anchor }, text);
    this.#svg.setAttribute("width", width);
    this.#svg.setAttribute("height", height);
    this.#svg.replaceChildren(...[0, top / 2, top].flatMap(line), ...ticks.map(tick), ...draw(x, y, ends));
  }
}

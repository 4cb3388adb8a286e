/** A small curve of one figure over time, scaled to its largest value. */

import { drawing, setAttribute } from "./dom.js";

const WIDTH = 120;
const HEIGHT = 24;

export class Curve {
  #area = drawing("path", { class: "area" });
  #edge = drawing("path", { class: "edge" });
  /** @type {SVGElement} */
  drawing = drawing(
    "svg",
    {
      class: "curve",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      "aria-hidden": "true",
    },
    this.#area,
    this.#edge,
  );

  /** @param {number[]} values the newest last  @param {number} room values from edge to edge */
  show(values, room) {
    const most = Math.max(...values, 1e-9);
    const step = WIDTH / (room - 1);
    const first = WIDTH - (values.length - 1) * step;
    const points = values.map((value, index) => {
      const [x, y] = [first + index * step, HEIGHT - 1 - (value / most) * (HEIGHT - 2)];
      return `${x.toFixed(1)} ${y.toFixed(1)}`;
    });
    const edge = points.length > 1 ? `M${points.join("L")}` : "";
    const area = edge && `${edge}L${WIDTH} ${HEIGHT}L${first.toFixed(1)} ${HEIGHT}z`;
    setAttribute(this.#edge, "d", edge);
    setAttribute(this.#area, "d", area);
  }
}

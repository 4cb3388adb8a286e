/** An engine's pages as a picture: a field of small squares for each tier of memory. */

import { drawing, setAttribute } from "./dom.js";

const COLUMNS = 48;
const PITCH = 5;
const SIZE = 4;

/**
 * @typedef {object} Share
 * @property {string} kind the style sheet's class for it
 * @property {number} amount pages
 */

export class PageMap {
  #paths = new Map();
  #numRows;
  /** @type {SVGElement} */
  drawing;

  /** @param {string[]} kinds from the first square on  @param {number} numRows */
  constructor(kinds, numRows) {
    this.#numRows = numRows;
    this.drawing = drawing("svg", {
      class: "page-map",
      viewBox: `0 0 ${COLUMNS * PITCH - 1} ${numRows * PITCH - 1}`,
      role: "img",
    });
    for (const kind of kinds) {
      const path = drawing("path", { class: kind });
      this.#paths.set(kind, path);
      this.drawing.append(path);
    }
  }

  /** @param {Share[]} shares in the order of the kinds  @param {string} label for who cannot see */
  show(shares, label) {
    const squares = spread(shares.map((share) => share.amount), COLUMNS * this.#numRows);
    let first = 0;
    shares.forEach(({ kind }, index) => {
      const last = first + squares[index];
      setAttribute(this.#paths.get(kind), "d", squaresPath(first, last, this.#numRows));
      first = last;
    });
    setAttribute(this.drawing, "aria-label", label);
  }
}

/**
 * So many squares for each amount, as many as there are in all, or one for each page if there are
 * fewer pages. What there is has at least one.
 */
export function spread(amounts, numSquares) {
  const total = amounts.reduce((sum, amount) => sum + amount, 0);
  if (total <= numSquares) {
    return amounts;
  }
  const squares = amounts.map((amount) => {
    return amount > 0 ? Math.max(1, Math.floor((amount / total) * numSquares)) : 0;
  });
  const left = numSquares - squares.reduce((sum, amount) => sum + amount, 0);
  squares[squares.indexOf(Math.max(...squares))] += left;
  return squares;
}

/** Filled from the left, column by column: a figure that grows grows to the right. */
function squaresPath(first, last, numRows) {
  let path = "";
  for (let index = first; index < last; index += 1) {
    const [column, row] = [Math.floor(index / numRows), index % numRows];
    path += `M${column * PITCH} ${row * PITCH}h${SIZE}v${SIZE}h-${SIZE}z`;
  }
  return path;
}

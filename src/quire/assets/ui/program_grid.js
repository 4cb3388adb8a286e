/**
 * The table of programs. Only the lines in sight are in the document, so that a thousand programs
 * cost as much as thirty. Owns the marked line and the keys; must not know where rows come from.
 */

import { element, setAttribute, setText } from "./dom.js";
import { briefCount, duration, seconds } from "./format.js";
import { nameOf, stateOf, waitingSeconds } from "./snapshot.js";
import { labelOf } from "./words.js";

/** Beyond the lines in sight, above and below. */
const SPARE_LINES = 4;
const SHORT_ID_CHARS = 12;

/** Name, heading and explanation of each column; the style sheet knows which fit into a window. */
const COLUMNS = [
  ["name", "Program", "Its name and the beginning of its id"],
  ["form", "Form", "Session, inferlet or workflow"],
  ["tenant", "Tenant", "Whose program it is"],
  ["state", "State, or waits for", "Whether it runs, or what it waits for and how long"],
  ["level", "Level", "The policy's level of its foremost call: the smallest goes first"],
  ["service", "Service", "Seconds of engine time that its calls have had"],
  ["waiting", "Waiting", "Seconds in which a command could have run and did not"],
  ["path", "Path", "Its critical path, in seconds"],
  ["age", "Age", "Since its start"],
  ["pages", "Pages", "On the device, and behind the plus sign on host and disk"],
  ["tokens", "Tokens", "Generated so far"],
];
const FIGURES = new Set(["level", "service", "waiting", "path", "age", "pages", "tokens"]);

export class ProgramGrid {
  #grid;
  #head;
  #body;
  #onSort;
  #onMark;
  #onOpen;
  #onEnter;
  #onFold;
  /** @type {import("./order.js").Line[]} */
  #lines = [];
  /** @type {Map<number, HTMLElement>} elements by the process that they show */
  #shown = new Map();
  #lineHeight = 0;
  #isTree = false;
  #now = 0;
  /** @type {Place | null} where a click has begun: the line may have moved before it ends */
  #pressedPlace = null;
  /** @type {number | null} the marked process */
  marked = null;

  /**
   * @param {HTMLElement} grid takes the focus and scrolls
   * @param {{sort: (column: string) => void, mark: (process: number) => void,
   *     open: (process: number) => void, enter: (process: number) => void,
   *     fold: (process: number, isFolded: boolean) => void}} on `open` by a click, `enter` by a key
   */
  constructor(grid, on) {
    this.#grid = grid;
    this.#onSort = on.sort;
    this.#onMark = on.mark;
    this.#onOpen = on.open;
    this.#onEnter = on.enter;
    this.#onFold = on.fold;
    this.#head = element("div", { className: "line head", role: "row", "aria-rowindex": 1 });
    this.#head.append(...COLUMNS.map((column) => this.#heading(column)));
    this.#body = element("div", { className: "lines", role: "rowgroup" });
    grid.append(element("div", { role: "rowgroup", className: "heads" }, this.#head), this.#body);
    grid.addEventListener("scroll", () => this.#draw(), { passive: true });
    document.addEventListener("keydown", (event) => this.#pressed(event));
    this.#body.addEventListener("pointerdown", (event) => {
      this.#pressedPlace = placeOf(event.target);
    });
    this.#body.addEventListener("click", (event) => this.#clicked(event));
    new ResizeObserver(() => this.#measure()).observe(grid);
  }

  /** Show these lines; `now` is the node's time. */
  show(lines, view, now) {
    this.#lines = lines;
    this.#isTree = view.tree;
    this.#now = now;
    for (const heading of this.#head.children) {
      const isSorted = heading.dataset.column === view.sort;
      const order = view.descending ? "descending" : "ascending";
      setAttribute(heading, "aria-sort", isSorted ? order : null);
    }
    setAttribute(this.#grid, "aria-rowcount", lines.length + 1);
    this.#draw();
  }

  /** Mark a process and bring its line into sight; null marks none. */
  mark(process) {
    this.marked = process;
    const index = this.#indexOf(process);
    if (index >= 0 && this.#lineHeight > 0) {
      const [top, headHeight] = [index * this.#lineHeight, this.#head.offsetHeight];
      const room = this.#grid.clientHeight - headHeight - this.#lineHeight;
      const least = Math.max(0, top - room);
      this.#grid.scrollTop = Math.min(Math.max(this.#grid.scrollTop, least), top);
    }
    this.#draw();
  }

  focus() {
    this.#grid.focus({ preventScroll: true });
  }

  #heading([name, title, explanation]) {
    const button = element("button", { type: "button", title: explanation }, title);
    button.addEventListener("click", () => this.#onSort(name));
    const heading = element("div", { role: "columnheader", className: `c-${name}` }, button);
    heading.classList.toggle("figure", FIGURES.has(name));
    heading.dataset.column = name;
    return heading;
  }

  #measure() {
    const height = Number.parseFloat(getComputedStyle(this.#grid).getPropertyValue("--line"));
    this.#lineHeight = height || 28;
    this.#draw();
  }

  #draw() {
    if (this.#lineHeight === 0) {
      return;
    }
    const [first, last] = this.#inSight();
    const wanted = new Set(this.#lines.slice(first, last).map((line) => line.row.process));
    const free = [...this.#shown].filter(([process]) => !wanted.has(process));
    this.#body.style.height = `${this.#lines.length * this.#lineHeight}px`;
    for (let index = first; index < last; index += 1) {
      const line = this.#lines[index];
      this.#fill(this.#elementFor(line.row.process, free), line, index);
    }
    for (const [process, unused] of free) {
      unused.remove();
      this.#shown.delete(process);
    }
    const isMarkedHere = this.marked !== null && this.#shown.has(this.marked);
    setAttribute(this.#grid, "aria-activedescendant", isMarkedHere ? lineId(this.marked) : null);
  }

  /** The lines in sight and some more: the first, and behind the last. */
  #inSight() {
    const { scrollTop, clientHeight } = this.#grid;
    const first = Math.floor(scrollTop / this.#lineHeight) - SPARE_LINES;
    const last = Math.ceil((scrollTop + clientHeight) / this.#lineHeight) + SPARE_LINES;
    return [Math.max(0, first), Math.min(this.#lines.length, last)];
  }

  /** The element that shows the process already, or one that is free, or a new one. */
  #elementFor(process, free) {
    let found = this.#shown.get(process);
    if (found === undefined) {
      const reused = free.pop();
      if (reused !== undefined) {
        this.#shown.delete(reused[0]);
      }
      found = reused?.[1] ?? newLine();
      found.id = lineId(process);
      found.dataset.process = process;
      this.#shown.set(process, found);
    }
    if (!found.isConnected) {
      this.#body.append(found);
    }
    return found;
  }

  #fill(target, line, index) {
    const { row } = line;
    target.style.transform = `translateY(${index * this.#lineHeight}px)`;
    setAttribute(target, "aria-rowindex", index + 2);
    setAttribute(target, "aria-selected", row.process === this.marked);
    setAttribute(target, "aria-level", this.#isTree ? line.depth + 1 : null);
    const isOpen = this.#lines[index + 1]?.depth > line.depth;
    setAttribute(target, "aria-expanded", line.hasChildren ? isOpen : null);
    fillCells(target.children, row, line.depth, this.#now);
  }

  #indexOf(process) {
    return this.#lines.findIndex((line) => line.row.process === process);
  }

  #clicked(event) {
    const place = this.#pressedPlace ?? placeOf(event.target);
    this.#pressedPlace = null;
    if (place === null) {
      return;
    }
    this.mark(place.process);
    if (place.isOpen === null) {
      this.#onOpen(place.process);
    } else {
      this.#onFold(place.process, place.isOpen);
    }
  }

  #pressed(event) {
    const isMeant = event.target === this.#grid || event.target === document.body; // none has focus
    if (event.altKey || event.ctrlKey || event.metaKey || !isMeant) {
      return;
    }
    const page = Math.max(1, Math.floor(this.#grid.clientHeight / this.#lineHeight) - 2);
    const steps = {
      ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity,
    };
    if (event.key in steps) {
      this.#move(steps[event.key]);
    } else if (event.key === "Enter" && this.#indexOf(this.marked) >= 0) {
      this.#onEnter(this.marked);
    } else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      this.#foldMarked(event.key === "ArrowLeft");
    } else {
      return;
    }
    event.preventDefault();
  }

  #move(step) {
    if (this.#lines.length === 0) {
      return;
    }
    const index = this.#indexOf(this.marked) + step; // from before the first line if none is marked
    const wanted = Math.min(Math.max(index, 0), this.#lines.length - 1);
    this.mark(this.#lines[wanted].row.process);
    this.#onMark(this.marked);
  }

  /** Left folds, or goes up to the parent; right unfolds. */
  #foldMarked(isFolding) {
    const index = this.#indexOf(this.marked);
    if (!this.#isTree || index < 0) {
      return;
    }
    const { row, hasChildren, depth } = this.#lines[index];
    const isOpen = this.#lines[index + 1]?.depth > depth;
    if (hasChildren && isOpen === isFolding) {
      this.#onFold(row.process, isFolding);
    } else if (isFolding && depth > 0) {
      this.#move(this.#indexOf(row.parent) - index);
    }
  }
}

/**
 * @typedef {object} Place
 * @property {number} process
 * @property {boolean | null} isOpen on the sign that folds; null elsewhere on the line
 */

/** @returns {Place | null} */
function placeOf(target) {
  const line = target.closest("[data-process]");
  if (line === null) {
    return null;
  }
  const isSign = target.closest(".fold") !== null && line.hasAttribute("aria-expanded");
  const isOpen = isSign ? line.getAttribute("aria-expanded") === "true" : null;
  return { process: Number(line.dataset.process), isOpen };
}

function lineId(process) {
  return `program-${process}`;
}

function newLine() {
  const line = element("div", { className: "line", role: "row" });
  for (const [name] of COLUMNS) {
    const cell = element("div", { role: "gridcell", className: `c-${name}` });
    cell.classList.toggle("figure", FIGURES.has(name));
    line.append(cell);
  }
  const byName = new Map(COLUMNS.map(([name], index) => [name, line.children[index]]));
  byName.get("name").append(
    element("span", { className: "fold", "aria-hidden": true }),
    element("span", { className: "label" }),
    element("span", { className: "id" }, element("span", { className: "id-prefix" }), element("span")),
  );
  byName.get("state").append(
    element("span", { className: "state" }),
    element("span", { className: "since" }),
  );
  byName.get("pages").append(element("span"), element("span", { className: "below" }));
  return line;
}

/** @param {HTMLCollection} cells in the order of COLUMNS */
function fillCells(cells, row, depth, now) {
  const [name, form, tenant, state, level, service, waiting, path, age, pages, tokens] = cells;
  const [fold, label, id] = name.children;
  const [stateLabel, since] = state.children;
  const [device, below] = pages.children;
  const numBelow = row.num_host_blocks + row.num_disk_blocks;
  const [given, shortId] = [nameOf(row), (row.id ?? `#${row.process}`).slice(0, SHORT_ID_CHARS)];
  fold.style.marginInlineStart = `${Math.min(depth, 12) * 14}px`;
  setText(label, given);
  const [prefix, rest] = id.children;
  const prefixLength = shortId.indexOf("-") + 1;
  setText(prefix, shortId.slice(0, prefixLength));
  setText(rest, shortId.slice(prefixLength));
  setAttribute(name, "title", given || null);
  setText(form, row.form);
  setText(tenant, row.tenant);
  const kind = stateOf(row);
  setText(stateLabel, labelOf(kind));
  setAttribute(stateLabel, "data-state", kind);
  setText(since, sinceOf(row, now));
  setText(level, row.level === null ? "" : String(row.level));
  setText(service, seconds(row.service_s));
  setText(waiting, seconds(waitingSeconds(row, now)));
  setText(path, row.end === undefined ? seconds(row.path_s) : "");
  setText(age, duration(now - row.created));
  setText(device, row.end === undefined ? briefCount(row.num_device_blocks) : "");
  setText(below, numBelow > 0 ? `+${briefCount(numBelow)}` : "");
  setText(tokens, briefCount(row.num_generated_tokens));
}

/** For how long it has waited, or has been at its end. */
function sinceOf(row, now) {
  if (row.end !== undefined) {
    return duration(now - row.end.ended);
  }
  return row.wait === null ? "" : duration(now - row.wait.since);
}

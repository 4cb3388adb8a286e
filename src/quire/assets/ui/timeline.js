/**
 * What a program did and when: its calls, what it waited for between them, and the messages that
 * carried them, on one axis of time. Draws a given trace; must not know how it was got.
 */

import { drawing, element, setText } from "./dom.js";
import { clock, count, counted, duration, shortSpan } from "./format.js";

const WIDTH = 360;
const LANE = 14;
const BAR = 10;
const MAX_LANES = 12;
const MAX_LISTED = 50;

/** Kinds of bars, as the style sheet knows them, and what they say. */
const LEGEND = [
  ["waiting", "waits for the engine"],
  ["prompt", "up to its first token"],
  ["answer", "after its first token"],
  ["wait", "between calls"],
  ["swap", "pages copied"],
  ["carried", "batch messages"],
];

/**
 * @typedef {object} Call
 * @property {string} kind
 * @property {number} arrival Unix time, as all times here
 * @property {number | null} sent
 * @property {number | null} first_token
 * @property {number | null} end
 * @property {string | null} outcome
 */

export class Timeline {
  #canvas = drawing("svg", { class: "timeline-drawing", role: "img" });
  #from = element("span");
  #to = element("span");
  #readout = element("p", { className: "readout" });
  #spans = element("div", { className: "spans", role: "group", "aria-label": "Span of time" });
  #trace = null;
  #span = 0;
  /** The picture and what belongs to it. */
  content;
  /** The latest calls in words, which the picture cannot say to everybody. */
  list = element("table", { className: "calls" });

  constructor() {
    const choices = [[0, "all"], [600, "10 min"], [60, "1 min"], [10, "10 s"]];
    for (const [span, label] of choices) {
      const button = element("button", { type: "button", "aria-pressed": span === 0 }, label);
      button.addEventListener("click", () => this.#choose(span, button));
      this.#spans.append(button);
    }
    this.#canvas.addEventListener("pointermove", (event) => this.#point(event.target));
    this.#canvas.addEventListener("pointerleave", () => this.#point(null));
    this.content = element(
      "div",
      { className: "timeline" },
      this.#spans,
      this.#canvas,
      element("div", { className: "axis", "aria-hidden": true }, this.#from, this.#to),
      element("p", { className: "legend" }, ...LEGEND.map(([kind, words]) => {
        return element("span", { className: `key ${kind}` }, words);
      })),
      this.#readout,
    );
  }

  /** @param {{time: number, programs: object[], messages: object[]}} trace */
  show(trace) {
    this.#trace = trace;
    this.#draw();
  }

  #choose(span, button) {
    this.#span = span;
    for (const other of this.#spans.children) {
      other.setAttribute("aria-pressed", String(other === button));
    }
    this.#draw();
  }

  #draw() {
    if (this.#trace === null) {
      return;
    }
    const { time, programs, messages } = this.#trace;
    const calls = programs.flatMap((one) => one.calls);
    const waits = programs.flatMap((one) => one.waits);
    const transfers = programs.flatMap((one) => one.transfers ?? []);
    const over = programs.every((one) => one.end !== null);
    const end = over ? Math.max(...programs.map((one) => one.end)) : time;
    const begins = [...calls.map((call) => call.arrival), ...waits.map((wait) => wait.start)];
    const first = this.#span > 0 ? end - this.#span : Math.min(...begins, end - 1);
    const axis = { first, end, scale: WIDTH / Math.max(end - first, 1e-3) };
    const lanes = lanesOf(calls, axis);
    const numLanes = Math.max(0, ...[...lanes.values()].map((lane) => lane + 1));
    this.#canvas.setAttribute("viewBox", `0 0 ${WIDTH} ${(numLanes + 3) * LANE}`);
    this.#canvas.replaceChildren(
      ...drawnWaits(waits, axis),
      ...drawnCalls(lanes, axis),
      ...drawnTransfers(transfers, numLanes + 1, axis),
      ...drawnMessages(messages, numLanes + 2, axis),
    );
    setText(this.#from, clock(first));
    setText(this.#to, clock(end));
    const shown = `${counted(calls.length, "call")}, ${counted(waits.length, "wait")} between them, ` +
      `${duration(end - first)} up to ${clock(end)}`;
    this.#canvas.setAttribute("aria-label", shown);
    setText(this.#readout, shown);
    this.list.replaceChildren(...listedCalls(calls));
  }

  #point(target) {
    const words = target?.getAttribute?.("data-words") ?? this.#canvas.getAttribute("aria-label");
    setText(this.#readout, words ?? "");
  }
}

/** In the first lane: what the program waited for between its calls. */
function drawnWaits(waits, axis) {
  return waits.flatMap(({ start, end }) => {
    const words = `tool, client or own code: ${shortSpan((end ?? axis.end) - start)}`;
    return bar("wait", start, end ?? axis.end, 0, axis, words);
  });
}

function drawnCalls(lanes, axis) {
  return [...lanes].flatMap(([call, lane]) => callShapes(call, lane + 1, axis));
}

/** Below the calls: pages that were copied to host or disk, or back. */
function drawnTransfers(transfers, lane, axis) {
  return transfers.flatMap((transfer) => {
    const where = transfer.direction === "out" ? `to the ${transfer.tier}` : `back from the ${transfer.tier}`;
    const words = `${counted(transfer.num_blocks, "page")} ${where}, ` +
      `${shortSpan(transfer.end - transfer.start)}${transfer.lost ? ", failed" : ""}`;
    const kind = `swap ${transfer.direction}`;
    return bar(kind, transfer.start, transfer.end, lane, axis, words);
  });
}

/** In the last lane: the engines' messages that carried the calls. */
function drawnMessages(messages, lane, axis) {
  return messages.flatMap((message) => {
    const words = `message ${message.number} of ${message.engine}: ` +
      `${counted(message.num_commands, "command")}, ${counted(message.num_tokens, "token")}, ` +
      shortSpan(message.end - message.start);
    return bar("carried", message.start, message.end, lane, axis, words);
  });
}

/** Waiting, then the prompt until the first token, then the rest. */
function callShapes(call, lane, axis) {
  const end = call.end ?? axis.end;
  const sent = call.sent ?? end;
  const token = call.first_token ?? end;
  const words = callWords(call, end);
  const kind = call.outcome ?? "under-way";
  return [
    ...bar("waiting", call.arrival, sent, lane, axis, words),
    ...bar(`prompt ${kind}`, sent, token, lane, axis, words),
    ...bar(`answer ${kind}`, token, end, lane, axis, words),
  ];
}

function callWords(call, end) {
  const words = [
    `${call.kind} ${call.outcome ?? "under way"}: ${shortSpan(end - call.arrival)}`,
    `waited ${shortSpan(call.waiting_s)}`,
    `${count(call.num_prefilled_tokens)} computed, ${count(call.num_cached_tokens)} cached, ` +
      `${count(call.num_generated_tokens)} generated`,
  ];
  if (call.num_preemptions > 0) {
    words.push(`preempted ${counted(call.num_preemptions, "time")}`);
  }
  if (call.error) {
    words.push(call.error.message);
  }
  return words.join(" · ");
}

/** @returns {SVGElement[]} none outside of the axis */
function bar(kind, start, end, lane, axis, words) {
  if (end < axis.first || start > axis.end || end <= start) {
    return [];
  }
  const from = Math.max(start, axis.first);
  const shape = drawing("rect", {
    class: kind,
    x: (from - axis.first) * axis.scale,
    y: lane * LANE + (LANE - BAR) / 2,
    width: Math.max((Math.min(end, axis.end) - from) * axis.scale, 0.75),
    height: BAR,
    "data-words": words,
  });
  return [shape];
}

/** @returns {Map<Call, number>} the lane of each call that is on the axis */
function lanesOf(calls, axis) {
  const lanes = new Map();
  const free = [];
  const shown = calls.filter((call) => (call.end ?? axis.end) >= axis.first);
  for (const call of shown.toSorted((one, other) => one.arrival - other.arrival)) {
    let lane = free.findIndex((end) => end <= call.arrival);
    lane = lane >= 0 ? lane : Math.min(free.length, MAX_LANES - 1);
    free[lane] = call.end ?? Infinity;
    lanes.set(call, lane);
  }
  return lanes;
}

function listedCalls(calls) {
  const headings = ["Call", "At", "Waited", "Took", "Tokens"];
  const latest = calls.slice(-MAX_LISTED).reverse();
  return [
    element("thead", {}, element("tr", {}, ...headings.map((text) => element("th", {}, text)))),
    element("tbody", {}, ...latest.map(listedCall)),
  ];
}

function listedCall(call) {
  const took = call.end === null ? "under way" : shortSpan(call.end - call.arrival);
  const computed = call.num_prefilled_tokens + call.num_cached_tokens;
  const cells = [
    call.outcome === "done" || call.outcome === null ? call.kind : `${call.kind}, ${call.outcome}`,
    clock(call.arrival),
    shortSpan(call.waiting_s),
    took,
    `${count(computed)} + ${count(call.num_generated_tokens)}`,
  ];
  return element("tr", {}, ...cells.map((text) => element("td", {}, text)));
}

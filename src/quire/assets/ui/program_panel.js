/** One program: why it waits, its figures, its family, its timeline, and what may be done to it. */

import { element, setText } from "./dom.js";
import { count, duration, seconds } from "./format.js";
import { nameOf, waitingSeconds } from "./snapshot.js";
import { Timeline } from "./timeline.js";
import { reasonOf } from "./words.js";

const FIGURES = [
  ["Service", (row) => `${seconds(row.service_s)} s`],
  ["Waiting", (row, now) => `${seconds(waitingSeconds(row, now))} s`],
  ["Critical path", (row) => `${seconds(row.path_s)} s`],
  ["Cost", (row) => `${seconds(row.cost_s)} s`],
  ["Age", (row, now) => duration(now - row.created)],
  ["Level", (row) => (row.level === null ? "none" : String(row.level))],
  ["Unfinished calls", (row) => count(row.num_calls)],
  ["Engines", (row) => row.engines.join(", ") || "none"],
  ["Pages", (row) => count(row.num_pages)],
  ["Preemptions", (row) => count(row.num_preemptions)],
  ["Blocks on device", (row) => count(row.num_device_blocks)],
  ["Blocks on host", (row) => count(row.num_host_blocks)],
  ["Blocks on disk", (row) => count(row.num_disk_blocks)],
  ["Tokens computed", (row) => count(row.num_prefilled_tokens)],
  ["Tokens cached", (row) => count(row.num_cached_tokens)],
  ["Tokens generated", (row) => count(row.num_generated_tokens)],
  ["Tokens encoded", (row) => count(row.num_encoded_tokens)],
];

/** Those that a record of an ended program has. */
const RECORDED = new Set([
  "Service", "Waiting", "Age", "Preemptions", "Tokens computed", "Tokens cached",
  "Tokens generated", "Tokens encoded",
]);

export class ProgramPanel {
  #panel;
  #on;
  #title = element("h2");
  #subtitle = element("p", { className: "subtitle" });
  #reason = element("p", { className: "reason" });
  #family = element("p", { className: "family" });
  #actions = element("div", { className: "actions" });
  #figures = FIGURES.map(() => element("dd"));
  #timeline;
  #trace = element("section", { "aria-label": "Timeline" });
  #traceNote = element("p", { className: "note" });
  #calls = element("section", { "aria-label": "Latest calls" }, element("h3", {}, "Latest calls"));
  /** @type {number | null} the process that is shown */
  process = null;

  /**
   * @param {HTMLElement} panel
   * @param {{close: () => void, open: (process: number) => void,
   *     act: (action: "end" | "cancel" | "end_of_input" | "message") => void}} on
   */
  constructor(panel, on) {
    this.#panel = panel;
    this.#on = on;
    const close = element("button", { type: "button", className: "close", "aria-label": "Close" });
    close.append("×");
    close.addEventListener("click", on.close);
    const listed = element("dl");
    FIGURES.forEach(([title], index) => {
      listed.append(element("div", {}, element("dt", {}, title), this.#figures[index]));
    });
    panel.append(
      element("header", {}, this.#title, close),
      this.#subtitle, this.#reason, this.#family, this.#actions, this.#trace, listed, this.#calls,
    );
    this.#trace.append(element("h3", {}, "Timeline"), this.#traceNote);
  }

  /** Show a program from its beginning on. */
  open(row) {
    this.process = row.process;
    this.#timeline?.content.remove();
    this.#timeline?.list.remove();
    this.#timeline = null;
    this.#calls.hidden = true;
    setText(this.#traceNote, "…");
    this.#traceNote.hidden = false;
    this.#actions.replaceChildren(...this.#buttonsOf(row));
    this.#panel.hidden = false;
    this.#panel.scrollTop = 0;
  }

  close() {
    this.process = null;
    this.#panel.hidden = true;
  }

  /** Whether it is before the table and not beside it, as in a narrow window. */
  get coversPage() {
    return getComputedStyle(this.#panel).position === "fixed";
  }

  focus() {
    this.#panel.focus({ preventScroll: true });
  }

  /**
   * @param {import("./snapshot.js").Row} row
   * @param {import("./snapshot.js").Snapshot} snapshot
   */
  show(row, snapshot, now) {
    setText(this.#title, nameOf(row) || row.id || `process ${row.process}`);
    const whose = row.tenant === "" ? [] : [`tenant ${row.tenant}`];
    const named = [row.form, row.id ?? `process ${row.process}`, ...whose];
    setText(this.#subtitle, named.join(" · "));
    setText(this.#reason, reasonOf(row, now));
    this.#showFamily(row, snapshot);
    FIGURES.forEach(([title, figure], index) => {
      const isKnown = row.end === undefined || RECORDED.has(title);
      this.#figures[index].parentElement.hidden = !isKnown;
      setText(this.#figures[index], isKnown ? figure(row, now) : "");
    });
  }

  /** The program has left the process table; what was known of it stays. `how`: it has ended. */
  showEnded(how) {
    setText(this.#reason, how);
    this.#actions.replaceChildren();
  }

  showTrace(trace) {
    if (this.#timeline === null) {
      this.#timeline = new Timeline();
      this.#trace.append(this.#timeline.content);
      this.#calls.append(this.#timeline.list);
      this.#calls.hidden = false;
    }
    this.#traceNote.hidden = true;
    this.#timeline.show(trace);
  }

  /** Why there is no timeline. */
  showNoTrace(reason) {
    setText(this.#traceNote, reason);
    this.#traceNote.hidden = false;
  }

  #showFamily(row, snapshot) {
    const parent = snapshot.rows.get(row.parent);
    const children = snapshot.children(row.process);
    const key = [parent?.process, ...children.map((child) => child.process)].join();
    if (this.#family.dataset.key === `${row.process}:${key}`) {
      return;
    }
    this.#family.dataset.key = `${row.process}:${key}`;
    const parts = parent === undefined ? [] : ["child of ", this.#linkTo(parent)];
    if (children.length > 0) {
      parts.push(parts.length > 0 ? "; parent of " : "parent of ");
      parts.push(...children.slice(0, 8).flatMap((child) => [this.#linkTo(child), " "]));
      parts.push(children.length > 8 ? `and ${count(children.length - 8)} more` : "");
    }
    this.#family.replaceChildren(...parts);
    this.#family.hidden = parts.length === 0;
  }

  #linkTo(row) {
    const link = element("button", { type: "button", className: "link" });
    link.append(nameOf(row) || (row.id ?? `process ${row.process}`).slice(0, 12));
    link.addEventListener("click", () => this.#on.open(row.process));
    return link;
  }

  /** A session has no mailbox, and what the node runs for itself is not for its clients to end. */
  #buttonsOf(row) {
    if (row.id === null || row.end !== undefined) {
      return [];
    }
    const actions = row.form === "session"
      ? [["end", "End session…"]]
      : [["message", "Send message…"], ["end_of_input", "End its input"], ["cancel", "Cancel…"],
        ["end", "End…"]];
    return actions.map(([action, label]) => {
      const button = element("button", { type: "button" }, label);
      button.dataset.action = action;
      button.classList.toggle("danger", action === "end" || action === "cancel");
      button.addEventListener("click", () => this.#on.act(action));
      return button;
    });
  }
}

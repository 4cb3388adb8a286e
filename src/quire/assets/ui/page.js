/**
 * The page: connects the node's feed with what shows it, and the user with the node. Owns what is
 * chosen: order, filter, the marked program, the open one.
 */

import { part, element, setAttribute, setText } from "./dom.js";
import { EndedPrograms } from "./ended_programs.js";
import { EngineCards } from "./engine_cards.js";
import { count, duration } from "./format.js";
import { columnAfter, countStates, linesOf, startsDescending } from "./order.js";
import { ProgramGrid } from "./program_grid.js";
import { ProgramPanel } from "./program_panel.js";
import { nameOf } from "./snapshot.js";
import { ENDED, STATES, endOf, labelOf } from "./words.js";

const TRACE_INTERVAL_MS = 1000;

const NOBODY = "No program runs. The button 'ended' lists those that have ended.";
const NO_MATCH = "No program fits the filter.";
const NO_RECORD = "The node has no record of an ended program; of sessions it keeps none.";

const LINKS = {
  connecting: "connecting",
  live: "live",
  lost: "not connected",
  stopped: "stopped",
  key: "needs a key",
};

const NOTICES = {
  connecting: (reason) => (reason ? `Not connected: ${reason}. Trying again now.` : ""),
  live: () => "",
  lost: (reason) => `Not connected: ${reason}. Trying again every few seconds.`,
  stopped: () => "The node has stopped. This page goes on as soon as one answers here.",
  key: () => "The node needs an API key: use the button Key.",
};

export class Page {
  #snapshot;
  #client;
  #dialogs;
  #ended;
  #engines = new EngineCards(part("engines"));
  #grid;
  #panel;
  #view = {
    sort: "service", descending: true, filter: "", state: null, tree: false, folded: new Set(),
  };
  #isDue = false;
  #tracedMs = 0;
  /** @type {AbortController | null} of the trace that is being read */
  #tracing = null;
  /** @type {{row: import("./snapshot.js").Row, how: string | null} | null} the program that was
   * opened last, and how it has ended, once that was asked */
  #opened = null;

  /**
   * @param {import("./snapshot.js").Snapshot} snapshot
   * @param {import("./node_client.js").NodeClient} client
   * @param {import("./dialogs.js").Dialogs} dialogs
   */
  constructor(snapshot, client, dialogs) {
    this.#snapshot = snapshot;
    this.#client = client;
    this.#dialogs = dialogs;
    this.#ended = new EndedPrograms(client, () => this.draw());
    this.#grid = new ProgramGrid(part("programs"), {
      sort: (column) => this.#sortBy(column),
      mark: (process) => this.#follow(process),
      open: (process) => this.#open(process),
      enter: (process) => this.#enter(process),
      fold: (process, isFolded) => this.#fold(process, isFolded),
    });
    this.#panel = new ProgramPanel(part("panel"), {
      close: () => this.#close(),
      open: (process) => this.#enter(process),
      act: (action) => this.#act(action),
    });
    part("filter").addEventListener("input", (event) => this.#choose({ filter: event.target.value }));
    part("tree").addEventListener("click", () => this.#choose({ tree: !this.#view.tree }));
    part("help").addEventListener("click", () => dialogs.showHelp());
    document.addEventListener("keydown", (event) => this.#pressed(event));
    setInterval(() => this.draw(), 1000); // ages and waits go on where nothing changes
  }

  /** The state of the connection, as `Follower` tells it. */
  showLink(state, reason) {
    setText(part("link"), LINKS[state]);
    setAttribute(part("link"), "data-state", state);
    setText(part("notice"), NOTICES[state](reason));
    part("notice").hidden = reason === "";
    document.body.classList.toggle("stale", state !== "live" && this.#snapshot.node !== null);
  }

  /** Draw what is known, before the browser's next frame. */
  draw() {
    if (!this.#isDue) {
      this.#isDue = true;
      requestAnimationFrame(() => {
        this.#isDue = false;
        this.#drawNow();
      });
    }
  }

  #drawNow() {
    const snapshot = this.#snapshot;
    if (snapshot.node === null) {
      return;
    }
    const now = snapshot.now(performance.now());
    this.#showNode(now);
    this.#engines.show(snapshot, snapshot.rows.get(this.#panel.process ?? this.#grid.marked));
    this.#showStates();
    const lines = this.#lines(now);
    this.#grid.show(lines, this.#view, now);
    part("empty").hidden = lines.length > 0;
    setText(part("empty"), this.#whyEmpty());
    this.#showPanel(now);
  }

  /** Of the process table, or of those that have left it. */
  #lines(now) {
    if (this.#view.state !== ENDED) {
      return linesOf(this.#snapshot.rows.values(), this.#view, now);
    }
    this.#ended.read(performance.now());
    return linesOf(this.#ended.rows.values(), { ...this.#view, state: null }, now);
  }

  #whyEmpty() {
    if (this.#view.state !== ENDED) {
      return this.#snapshot.rows.size > 0 ? NO_MATCH : NOBODY;
    }
    if (this.#ended.problem !== "") {
      return `The records cannot be read: ${this.#ended.problem}.`;
    }
    return this.#ended.rows.size > 0 ? NO_MATCH : this.#ended.isRead ? NO_RECORD : "…";
  }

  /** A program of the process table, or one that has left it. */
  #row(process) {
    return this.#snapshot.rows.get(process) ?? this.#ended.rows.get(process);
  }

  #showNode(now) {
    const { node, rows } = this.#snapshot;
    const uptime = node.uptime_s + (now - node.time);
    setText(part("ready"), node.ready ? "ready" : "not ready");
    setAttribute(part("ready"), "data-state", node.ready ? "ready" : "unready");
    setText(part("node-figures"), `policy ${node.policy} · up ${duration(uptime)}`);
    setText(part("node-detail"), node.detail);
    part("node-detail").hidden = node.detail === "";
    document.title = `${count(rows.size)} programs · Quire`;
  }

  /** A button for each state that programs are in, and one for those that have ended: how many, and
   * to show only these. */
  #showStates() {
    const counts = countStates(this.#snapshot.rows.values());
    const chosen = this.#view.state;
    const states = [...STATES.filter((state) => counts.has(state) || state === chosen), ENDED];
    if (this.#ended.isRead) {
      counts.set(ENDED, this.#ended.rows.size);
    }
    const list = part("states");
    const known = [...list.children].map((button) => button.dataset.state ?? "");
    if (known.join() !== ["", ...states].join()) {
      list.replaceChildren(this.#stateButton(null), ...states.map((one) => this.#stateButton(one)));
    }
    for (const button of list.children) {
      const state = button.dataset.state ?? null;
      const amount = state === null ? this.#snapshot.rows.size : counts.get(state) ?? 0;
      const isKnown = state !== ENDED || this.#ended.isRead;
      setText(button.lastElementChild, isKnown ? count(amount) : "");
      setAttribute(button, "aria-pressed", state === chosen);
    }
  }

  #stateButton(state) {
    const label = state === null ? "all" : labelOf(state);
    const button = element(
      "button", { type: "button" }, element("span", {}, label), " ", element("b"),
    );
    if (state !== null) {
      button.dataset.state = state;
    }
    button.addEventListener("click", () => {
      this.#choose({ state: this.#view.state === state ? null : state });
    });
    return button;
  }

  // -- what is chosen ------------------------------------------------------------------------

  #choose(changed) {
    this.#view = { ...this.#view, ...changed };
    setAttribute(part("tree"), "aria-pressed", this.#view.tree);
    this.draw();
  }

  #sortBy(column) {
    const isAgain = this.#view.sort === column;
    const descending = isAgain ? !this.#view.descending : startsDescending(column);
    this.#choose({ sort: column, descending });
  }

  #fold(process, isFolded) {
    const folded = new Set(this.#view.folded);
    folded[isFolded ? "add" : "delete"](process);
    this.#choose({ folded });
  }

  #pressed(event) {
    const isTyping = event.target.closest("input, textarea, dialog") !== null;
    if (event.altKey || event.ctrlKey || event.metaKey || event.defaultPrevented) {
      return;
    }
    if (event.key === "Escape" && event.target.id === "filter") {
      part("filter").value = "";
      this.#choose({ filter: "" });
      this.#grid.focus();
    } else if (event.target.id === "filter" && (event.key === "Enter" || event.key === "ArrowDown")) {
      this.#grid.focus();
    } else if (isTyping) {
      return;
    } else if (!this.#command(event.key)) {
      return;
    }
    event.preventDefault();
  }

  /** Whether the key is one of the page's. */
  #command(key) {
    const commands = {
      "/": () => part("filter").select(),
      "?": () => this.#dialogs.showHelp(),
      t: () => this.#choose({ tree: !this.#view.tree }),
      s: () => this.#sortBy(columnAfter(this.#view.sort)),
      k: () => this.#act("end"),
      Escape: () => this.#close(),
    };
    commands[key]?.();
    return key in commands;
  }

  // -- one program ---------------------------------------------------------------------------

  #open(process) {
    const row = this.#row(process);
    if (row === undefined) {
      return;
    }
    if (this.#panel.process !== process) {
      this.#grid.mark(process);
      this.#panel.open(row);
      this.#opened = { row, how: null };
      this.#tracing?.abort();
      this.#tracedMs = 0;
      document.body.classList.add("with-panel");
    }
    this.draw();
    if (this.#panel.coversPage) {
      this.#panel.focus();
    }
  }

  /** Open it and go there. */
  #enter(process) {
    this.#open(process);
    this.#panel.focus();
  }

  /** What is open beside the table is what is marked in it. */
  #follow(process) {
    if (this.#panel.process !== null) {
      this.#open(process);
    }
    this.draw();
  }

  #close() {
    if (this.#panel.process !== null) {
      this.#panel.close();
      this.#tracing?.abort();
      document.body.classList.remove("with-panel");
      this.draw();
    }
    this.#grid.focus();
  }

  #showPanel(now) {
    if (this.#panel.process === null) {
      return;
    }
    const row = this.#row(this.#panel.process);
    if (row === undefined) {
      this.#showEnd(this.#opened);
      return;
    }
    this.#panel.show(row, this.#snapshot, now);
    const nowMs = performance.now();
    const isOld = row.end === undefined && nowMs - this.#tracedMs >= TRACE_INTERVAL_MS;
    if (row.id !== null && (this.#tracedMs === 0 || isOld)) {
      this.#tracedMs = nowMs;
      this.#readTrace(row);
    }
  }

  /** The node is asked how the program has ended, until its record says so; of a session it keeps
   * none. */
  async #showEnd(opened) {
    if (opened.how === null) {
      opened.how = endOf(null);
      const { id, form } = opened.row;
      if (id !== null && form !== "session") {
        const record = await this.#client.program(id).catch(() => null);
        opened.how = record !== null && record.ended === null ? null : endOf(record);
      }
    }
    if (opened === this.#opened) {
      this.#panel.showEnded(opened.how ?? endOf(null));
    }
  }

  /** One at a time: a node that answers slowly is not asked again meanwhile. */
  async #readTrace(row) {
    if (this.#tracing !== null && !this.#tracing.signal.aborted) {
      return;
    }
    const reading = new AbortController();
    this.#tracing = reading;
    try {
      const trace = await this.#client.trace(row.id, reading.signal);
      if (!reading.signal.aborted && this.#panel.process === row.process) {
        this.#panel.showTrace(trace);
      }
    } catch (error) {
      if (!reading.signal.aborted) {
        const isUnknown = error.status === 404 || error.status === 405;
        const reason = isUnknown ? "this node keeps no record of it" : error.message;
        this.#panel.showNoTrace(`There is no timeline: ${reason}.`);
      }
    } finally {
      reading.abort();
    }
  }

  // -- what is done to it --------------------------------------------------------------------

  /** Upon the open program, else upon the marked one. */
  async #act(action) {
    const row = this.#snapshot.rows.get(this.#panel.process ?? this.#grid.marked);
    if (row === undefined || row.id === null) {
      this.#say("No program is marked that could be ended: use the arrow keys.");
      return;
    }
    const name = nameOf(row) === "" ? row.id : `${nameOf(row)} (${row.id})`;
    try {
      this.#say(await this.#carryOut(action, row, name));
    } catch (error) {
      this.#say(error.message);
    }
  }

  /** What has been done, in a sentence. */
  async #carryOut(action, row, name) {
    if (action === "message") {
      const text = await this.#dialogs.askMessage(`A message to ${name}`);
      if (text === null) {
        return "";
      }
      await this.#client.signal(row.id, "message", text);
      return `The message to ${name} is in its mailbox.`;
    }
    if (action === "end_of_input") {
      await this.#client.signal(row.id, "end_of_input");
      return `The input of ${name} has ended.`;
    }
    const kind = row.form === "session" ? "session" : "program";
    const verb = action === "cancel" ? "Cancel" : "End";
    if (!(await this.#dialogs.confirm(`${verb} the ${kind} ${name}?`))) {
      return "Nothing was ended.";
    }
    await (action === "cancel" ? this.#client.signal(row.id, "cancel") : this.#client.end(row));
    return `${name} is told to end.`;
  }

  #say(text) {
    setText(part("said"), text);
  }
}

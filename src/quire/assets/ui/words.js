/** What the page says about a program's state, in a word and in a sentence. */

import { duration } from "./format.js";
import { stateOf } from "./snapshot.js";

/** In the order in which they are listed. */
export const STATES = [
  "running", "turn", "seat", "memory", "paused: memory", "pages", "command", "engine", "idle",
];

const LABELS = {
  running: "running",
  idle: "idle",
  turn: "its turn",
  seat: "a seat",
  memory: "memory",
  "paused: memory": "paused",
  pages: "its pages",
  command: "a command",
  engine: "its engine",
};

const REASONS = {
  idle: "It has no unfinished command: its own code runs, or it waits for its client or a tool.",
  turn: "It waits for its turn: the next batch message to the engine carries other programs' commands.",
  seat: "It waits for a seat: all sequences of the engine are taken.",
  memory: "It waits for memory: no page is free.",
  "paused: memory":
    "It is paused between two calls, until there is room in memory for its working set.",
  pages: "It waits for its pages: they are copied from host or disk, or computed again.",
  command: "It waits for another command, of its own or one that uses the same page.",
  engine: "It waits for its engine to come up.",
};

export function labelOf(state) {
  return LABELS[state] ?? state;
}

/** Beside the states of the process table: what the page shows instead of it. */
export const ENDED = "ended";

const ENDS = {
  finished: "has finished",
  failed: "has failed",
  cancelled: "was cancelled",
  terminated: "was terminated",
};

/** How a program has ended, by its record; without one, that it has. */
export function endOf(record) {
  const how = ENDS[record?.state] ?? "has ended";
  const [why] = (record?.error?.message ?? "").split("\n");
  return why === "" ? `It ${how}.` : `It ${how}: ${why}`;
}

/** Why the program does not run now, and for how long; or that it runs, or how it has ended. */
export function reasonOf(row, now) {
  if (row.end !== undefined) {
    return endOf(row.end);
  }
  const state = stateOf(row);
  if (state === "running") {
    return "It runs: a batch message carries one of its commands.";
  }
  const reason = REASONS[state] ?? `It waits for ${state}.`;
  return `${reason} For ${duration(now - row.wait.since)}.`;
}

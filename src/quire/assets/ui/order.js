/** Which programs are shown, and in which order. Pure functions over rows. */

import { nameOf, stateOf, waitingSeconds } from "./snapshot.js";

/** The columns that can be sorted by, with what they compare; figures go from the largest down. */
const COMPARED = {
  name: (row) => nameOf(row) || row.id || "",
  form: (row) => row.form,
  tenant: (row) => row.tenant,
  state: (row) => stateOf(row),
  level: (row) => row.level ?? -1,
  service: (row) => row.service_s,
  waiting: (row, now) => waitingSeconds(row, now),
  path: (row) => row.path_s,
  age: (row, now) => now - row.created,
  pages: (row) => row.num_device_blocks + row.num_host_blocks + row.num_disk_blocks,
  tokens: (row) => row.num_generated_tokens,
};

/** The column to sort by after this one. */
export function columnAfter(column) {
  const columns = Object.keys(COMPARED);
  return columns[(columns.indexOf(column) + 1) % columns.length];
}

const TEXTS = new Set(["name", "form", "tenant", "state"]);

/** Names go up and figures down, unless it is asked otherwise. */
export function startsDescending(column) {
  return !TEXTS.has(column);
}

/**
 * @typedef {object} View
 * @property {string} sort a column
 * @property {boolean} descending
 * @property {string} filter
 * @property {string | null} state only programs in this state
 * @property {boolean} tree
 * @property {Set<number>} folded processes whose descendants are not shown
 */

/**
 * @typedef {object} Line
 * @property {import("./snapshot.js").Row} row
 * @property {number} depth
 * @property {boolean} hasChildren
 */

/** @returns {Line[]} the lines to show, in their order */
export function linesOf(rows, view, now) {
  const found = [...rows].filter((row) => isShown(row, view));
  const key = COMPARED[view.sort];
  const keys = new Map(found.map((row) => [row, key(row, now)]));
  const sign = view.descending ? -1 : 1;
  found.sort((one, other) => {
    const [left, right] = [keys.get(one), keys.get(other)];
    const order = left < right ? -1 : left > right ? 1 : 0;
    return sign * order || one.process - other.process;
  });
  return view.tree
    ? asTree(found, view.folded)
    : found.map((row) => ({ row, depth: 0, hasChildren: false }));
}

/** How many programs are in which state. */
export function countStates(rows) {
  const counts = new Map();
  for (const row of rows) {
    const state = stateOf(row);
    counts.set(state, (counts.get(state) ?? 0) + 1);
  }
  return counts;
}

function isShown(row, view) {
  if (view.state !== null && stateOf(row) !== view.state) {
    return false;
  }
  const text = view.filter.toLowerCase();
  if (!text) {
    return true;
  }
  const { node, id, name, client_id: clientId, tenant, form, engines } = row;
  return [node, id, name, clientId, tenant, form, stateOf(row), ...engines].some(
    (one) => (one ?? "").toLowerCase().includes(text),
  );
}

/** Each below its parent, in their order; one whose parent is not shown is a root. */
function asTree(rows, folded) {
  const shown = new Set(rows.map((row) => row.process));
  const children = Map.groupBy(rows, (row) => (shown.has(row.parent) ? row.parent : null));
  const lines = [];
  const waiting = (children.get(null) ?? []).map((row) => ({ row, depth: 0 })).reverse();
  while (waiting.length > 0) {
    const { row, depth } = waiting.pop();
    const below = children.get(row.process) ?? [];
    lines.push({ row, depth, hasChildren: below.length > 0 });
    if (!folded.has(row.process)) {
      waiting.push(...below.map((child) => ({ row: child, depth: depth + 1 })).reverse());
    }
  }
  return lines;
}

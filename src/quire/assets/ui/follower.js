/** Follows the node's feed of changes, and begins again when it is cut off. */

import { NodeError } from "./node_client.js";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 15_000;
/** The node gives a sign of life every ten seconds. */
const SILENCE_MS = 30_000;

/**
 * @typedef {"connecting" | "live" | "lost" | "key" | "stopped"} LinkState `key`: the node asks for
 * one, or does not know the one it was sent.
 */

export class Follower {
  #client;
  #onChanges;
  #onState;
  #place = "";
  #pauseMs = FIRST_PAUSE_MS;
  /** @type {AbortController | null} */
  #current = null;

  /**
   * @param {import("./node_client.js").NodeClient} client
   * @param {(changes: object) => void} onChanges called with each answer of the feed
   * @param {(state: LinkState, reason: string) => void} onState
   */
  constructor(client, onChanges, onState) {
    this.#client = client;
    this.#onChanges = onChanges;
    this.#onState = onState;
  }

  /** Begin, or begin again at once with another key. */
  start() {
    this.#current?.abort();
    const current = new AbortController();
    this.#current = current;
    this.#pauseMs = FIRST_PAUSE_MS;
    this.#place = "";
    this.#run(current.signal);
  }

  async #run(signal) {
    while (!signal.aborted) {
      const error = await this.#follow(signal);
      if (signal.aborted) {
        return;
      }
      if (error.status === 401) {
        this.#onState("key", error.message);
        return;
      }
      if (error.status === 400) {
        this.#place = ""; // of a node that this one has replaced
      }
      const state = error.code === "stopped" ? "stopped" : "lost";
      this.#onState(state, error.message);
      await pause(this.#pauseMs, signal);
      this.#pauseMs = Math.min(2 * this.#pauseMs, LONGEST_PAUSE_MS);
      if (!signal.aborted) {
        this.#onState("connecting", error.message);
      }
    }
  }

  /** Until the feed ends, one way or another; returns why. */
  async #follow(signal) {
    const attempt = new AbortController();
    const abort = () => attempt.abort();
    signal.addEventListener("abort", abort);
    let alarm = setTimeout(abort, SILENCE_MS);
    try {
      const events = await this.#client.changes(this.#place, attempt.signal);
      for await (const event of events) {
        clearTimeout(alarm);
        alarm = setTimeout(abort, SILENCE_MS);
        if (event.data === "[DONE]") {
          return new NodeError(0, "the node has stopped", "stopped");
        }
        if (event.data) {
          this.#take(JSON.parse(event.data));
        }
      }
      return new NodeError(0, "the node has ended the connection");
    } catch (error) {
      if (error instanceof NodeError) {
        return error;
      }
      return new NodeError(0, attempt.signal.aborted ? "the node is silent" : "the node is gone");
    } finally {
      clearTimeout(alarm);
      signal.removeEventListener("abort", abort);
      attempt.abort();
    }
  }

  #take(changes) {
    this.#place = changes.next;
    this.#pauseMs = FIRST_PAUSE_MS;
    this.#onState("live", "");
    try {
      this.#onChanges(changes);
    } catch (error) {
      reportError(error); // of this page, which is no reason to leave the node
    }
  }
}

/** Wait, but not for somebody who has left. */
function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}

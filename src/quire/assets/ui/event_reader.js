/** Server-sent events out of a stream of bytes, wherever it is cut. */

const MAX_CHARS = 64 << 20;

/**
 * @typedef {{id: string, data: string}} ServerEvent `data` is empty for a sign of life.
 */

/**
 * The events of a response's body. A comment is a sign of life: an event without data.
 *
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<ServerEvent>}
 */
export async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        return;
      }
      rest += value;
      const blocks = rest.split("\n\n");
      rest = blocks.pop();
      if (rest.length > MAX_CHARS) {
        throw new Error("the node sends an event without an end");
      }
      yield* blocks.map(eventOf);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** @returns {ServerEvent} */
function eventOf(block) {
  const event = { id: "", data: "" };
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    const name = line.slice(0, colon);
    if (name === "id" || name === "data") {
      event[name] += line.slice(colon + 1).replace(/^ /, "");
    }
  }
  return event;
}

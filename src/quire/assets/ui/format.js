/** How figures are written. */

const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

/** A time span in its largest fitting unit: `3 min`; below ten seconds with a decimal. */
export function duration(seconds) {
  const span = Math.max(0, seconds);
  if (span < 10) {
    return `${span.toFixed(1)} s`;
  }
  const [unit, length] = UNITS.find(([, size]) => span >= size);
  return `${Math.floor(span / length)} ${unit}`;
}

/** Seconds with as many digits as mean something: `0.12`, `4.3`, `812`. */
export function seconds(amount) {
  return amount.toFixed(amount < 1 ? 2 : amount < 100 ? 1 : 0);
}

/** A short span, as between two messages: `340 µs`, `12 ms`, `1.2 s`. */
export function shortSpan(amount) {
  if (amount < 0.001) {
    return `${Math.round(amount * 1e6)} µs`;
  }
  return amount < 1 ? `${Math.round(amount * 1e3)} ms` : `${seconds(amount)} s`;
}

/** A count: `942`, `12,345`. */
export function count(amount) {
  return Math.round(amount).toLocaleString("en");
}

/** A count in four characters: `942`, `12k`, `3.4M`. */
export function briefCount(amount) {
  const [unit, size] = amount >= 999_500 ? ["M", 1e6] : amount >= 10_000 ? ["k", 1e3] : ["", 1];
  const scaled = amount / size;
  return `${unit && scaled < 10 ? scaled.toFixed(1) : Math.round(scaled)}${unit}`;
}

/** `1 page`, `2 pages`. */
export function counted(amount, word) {
  return `${count(amount)} ${word}${amount === 1 ? "" : "s"}`;
}

/** A Unix time as a time of day. */
export function clock(unixS) {
  return new Date(unixS * 1000).toLocaleTimeString("en-GB");
}

/**
 * Makes the wall clock of a process and of all its threads jump by hours, forwards and back, as an operator or a time
 * server does; `performance.now()` and timers go on evenly, as CLOCK_MONOTONIC does. Loaded by `--require`, which reaches
 * threads as well. `JUMPING_CLOCK` is `back` or `forth`, for an hour at every jump, or the seed of jumps of up to six hours
 * either way; `JUMPING_CLOCK_LOG` is a file that says which processes and threads were reached. All with the same have one
 * clock, as the processes of one machine do.
 */
"use strict";
const { appendFileSync } = require("node:fs");
const threads = require("node:worker_threads");
const { syncBuiltinESMExports } = require("node:module");

const { JUMPING_CLOCK, JUMPING_CLOCK_LOG } = process.env;
const jumpMs = 250;
const hourMs = 3_600_000;
/** Days, so that a clock that goes on going back does not leave the years that there are. */
const numStretches = 10_000;

/** Of a stretch of time between two jumps, the same in every process and thread. */
function offsetOf(stretch) {
  if (JUMPING_CLOCK === "forth") return (stretch % numStretches) * hourMs;
  if (JUMPING_CLOCK === "back") return -(stretch % numStretches) * hourMs;
  const seed = Number(JUMPING_CLOCK);
  let hash = (Math.imul(stretch, 0x9e37_79b1) ^ Math.imul(seed + 1, 0x85eb_ca77)) >>> 0;
  for (const factor of [0x7feb_352d, 0x846c_a68b]) hash = Math.imul(hash ^ (hash >>> 15), factor) >>> 0;
  return Math.round((hash / 2 ** 32 - 0.5) * 12 * hourMs);
}

const offsetMs = () => offsetOf(Number(process.hrtime.bigint() / BigInt(jumpMs * 1_000_000)));

const SteadyDate = globalThis.Date;
function JumpingDate(...args) {
  if (new.target === undefined) return new SteadyDate(JumpingDate.now()).toString();
  return Reflect.construct(SteadyDate, args.length === 0 ? [JumpingDate.now()] : args, new.target);
}
Object.setPrototypeOf(JumpingDate, SteadyDate);
JumpingDate.prototype = SteadyDate.prototype;
JumpingDate.now = () => SteadyDate.now() + offsetMs();
SteadyDate.prototype.constructor = JumpingDate;
globalThis.Date = JumpingDate;
Object.defineProperty(performance, "timeOrigin", { value: performance.timeOrigin + offsetMs() });

/** Threads with options and an environment of their own have the clock, too. */
threads.Worker = class extends threads.Worker {
  constructor(entry, options = {}) {
    const execArgv = [...(options.execArgv ?? []), "--require", __filename];
    super(entry, { ...options, execArgv, env: { ...(options.env ?? process.env), JUMPING_CLOCK, JUMPING_CLOCK_LOG } });
  }
};
syncBuiltinESMExports();

appendFileSync(JUMPING_CLOCK_LOG, `${JSON.stringify({ pid: process.pid, thread: threads.threadId })}\n`);

/**
 * What handles a signal runs on the main thread, and so not while that computes without a pause, as in `for (;;);` of a
 * workflow. A thread notices, and takes the handlers away in the midst of it, by a pause of the debugger: the next signal does
 * what the system does by default, and ends the process at once. Handlers are back once the event loop turns again.
 *
 * The thread's source is a string so that it starts without a loader.
 */
import { Worker as Thread } from "node:worker_threads";

const stampMs = 500;
const stuckMs = 5000;
const endingSignals = ["SIGINT", "SIGTERM"] as const;

const source = `
const { workerData } = require("node:worker_threads");
const { writeSync } = require("node:fs");
const { Session } = require("node:inspector");
const { turns, stampMs, stuckMs, signals } = workerData;
const expression = signals.map((signal) => "globalThis.process.removeAllListeners('" + signal + "')").join(";");
let last = -1, stillMs = 0;
const release = () => {
  const session = new Session();
  session.connectToMainThread();
  session.on("Debugger.paused", ({ params: { callFrames: [{ callFrameId }] } }) => {
    session.post("Debugger.evaluateOnCallFrame", { callFrameId, expression, silent: true }, (error) => {
      session.post("Debugger.resume", () => { try { session.post("Debugger.disable"); session.disconnect(); } catch {} });
      const seconds = Math.round(stillMs / 1000);
      if (!error) try { writeSync(2, "this process has computed for " + seconds + " s without a pause: should it be told to stop (Ctrl-C, SIGTERM) before it goes on, it ends at once\\n"); } catch {}
    });
  });
  session.post("Debugger.enable", () => session.post("Debugger.pause"));
};
setInterval(() => {
  const now = Atomics.load(turns, 0);
  stillMs = now === last ? stillMs + stampMs : 0;
  last = now;
  if (stillMs >= stuckMs && stillMs < stuckMs + stampMs) release();
}, stampMs);
`;

/** From now on `onSignal` hears them, and whatever this process computes, one of them ends it. */
export function hearSignals(onSignal: () => void): Disposable {
  const turns = new Int32Array(new SharedArrayBuffer(4));
  const listen = () => {
    for (const signal of endingSignals) if (!process.listeners(signal).includes(onSignal)) process.on(signal, onSignal);
  };
  listen();
  const stamps = setInterval(() => {
    Atomics.add(turns, 0, 1);
    listen();
  }, stampMs).unref();
  const thread = new Thread(source, { eval: true, workerData: { turns, stampMs, stuckMs, signals: endingSignals } });
  thread.unref();
  thread.on("error", () => {}); // a process that may have no threads ends by SIGKILL alone
  return {
    [Symbol.dispose]() {
      clearInterval(stamps);
      for (const signal of endingSignals) process.off(signal, onSignal);
      void thread.terminate();
    },
  };
}

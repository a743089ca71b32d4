import { fromErrorRecord, TreadleError, toErrorRecord } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { renderError } from "../src/view/error.ts";

const view = { verbose: false, colour: false, columns: 100 };

const died = new TreadleError(
  "worker.died",
  "worker 'rollout/1' died: killed by SIGKILL; use fewer ranks or more memory",
  {
    origin: {
      worker: "rollout/1",
      node: "node-a",
      method: "generate",
      step: 12,
      logTail: ["loading", "\u001b[31mout of memory\u001b[0m"],
    },
  },
);
const failure = new TreadleError("call.failed", "call 'actor.train' failed", {
  origin: { worker: "actor/0", method: "train" },
  cause: new TreadleError("channel.producer-failed", "a producer of channel 'episodes' failed", { cause: died }),
});

describe("an error, for a person", () => {
  it("leads with the root cause and where it happened, not with the victim (S1)", () => {
    const text = renderError(failure, view);
    expect(text.split("\n")[0]).toBe("✗ worker 'rollout/1' died: killed by SIGKILL");
    expect(text).toContain("worker rollout/1 on node-a in generate() at step 12");
    expect(text).toContain("│ out of memory");
    expect(text).toMatch(/led to +a producer of channel 'episodes' failed\n +call 'actor.train' failed/);
    expect(text).toMatch(/remedy +use fewer ranks or more memory/);
    expect(text).not.toContain("actor/0");
  });

  it("shows nothing that moves a cursor or writes into a clipboard, wherever it stands", () => {
    const evil = "\u001b]0;owned\u0007\u001b[2J\u009b31m";
    const error = new TreadleError("node.unavailable", `none; 'a' cannot be used: ${evil}`, {
      origin: { node: evil, logTail: [evil] },
      cause: new TreadleError("config.invalid", `not allowed: ${evil}`, {
        details: { problems: [evil, { path: evil, message: evil }] },
      }),
    });
    for (const verbose of [false, true]) {
      const text = renderError(error, { ...view, verbose }).replaceAll("\n", "");
      // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
      expect(text).not.toMatch(/[\u0000-\u001f\u007f-\u009f]/);
    }
  });

  it("keeps together what a message repeats of another, whatever stands in it", () => {
    const clause = fc.array(fc.constantFrom("node 'a'", "is silent", "; ", ": ", "'x; y'", "more"), { maxLength: 6 });
    const text = clause.map((words) => `what happened ${words.join(" ")}`);
    fc.assert(
      fc.property(text, fc.boolean(), (inner, isOwn) => {
        // As a worker's code words it, and as Treadle repeats it.
        const cause = isOwn ? new Error(inner) : new TreadleError("call.failed", inner);
        const outer = new TreadleError("worker.gave-up", `'rollout' died too often, the last time since ${inner}`, {
          cause,
        });
        const shown = renderError(new TreadleError("run.locked", "the end", { cause: outer }), {
          ...view,
          columns: 120,
        });
        const flat = shown.replace(/\s+/g, " ");
        const whole = inner.replace(/\s+/g, " ").trim();
        expect(flat).toContain(whole);
        expect(flat).toContain(`died too often, the last time since ${whole}`);
      }),
    );
    const nested = new TreadleError(
      "control-plane.refused",
      "the server keeps nothing: it is full; x; y; start another",
      {
        cause: new TreadleError("node.lost", "it is full; x; y"),
      },
    );
    expect(renderError(nested, view)).toMatch(/led to +the server keeps nothing: it is full; x; y\n/);
    expect(renderError(nested, view)).toMatch(/remedy[\s\S]*start another/);
  });

  it("reads the same after it has crossed a process boundary", () => {
    const crossed = fromErrorRecord(JSON.parse(JSON.stringify(toErrorRecord(failure))));
    expect(renderError(crossed, view)).toBe(renderError(failure, view));
  });

  it("shows no stack for a misuse, and lists all its problems", () => {
    const problems = [
      { path: "steps", message: "'-3' is not allowed: must be positive" },
      { path: "actor.learningrate", message: "unknown key; did you mean 'learningRate'" },
    ];
    const error = new TreadleError("config.invalid", problems.map((p) => `${p.path}: ${p.message}`).join("; "), {
      details: { problems },
    });
    const text = renderError(error, view);
    expect(text).toContain("✗ the configuration has wrong or unknown keys or values");
    for (const { path, message } of problems) expect(text).toContain(`${path}: ${message}`);
    expect(text).not.toMatch(/\.ts|--verbose/);
  });

  it("leads with what Treadle says of a system's error, with its remedy, and gives the system's words as the reason", () => {
    const error = new TreadleError(
      "config.unreadable",
      "configuration file 'nofile.yaml' cannot be read; give a YAML file with --config",
      { cause: Object.assign(new Error("ENOENT: no such file or directory, open 'nofile.yaml'"), { code: "ENOENT" }) },
    );
    const outer = new TreadleError("node.unavailable", "no node can start it; start another node", { cause: error });
    for (const [thrown, ledTo] of [
      [error, false],
      [outer, true],
    ] as const) {
      const text = renderError(thrown, view);
      expect(text.split("\n")[0]).toBe("✗ configuration file 'nofile.yaml' cannot be read");
      expect(text).toMatch(/because +ENOENT: no such file or directory, open 'nofile\.yaml'\n/);
      expect(text).toMatch(/what +the configuration file is missing or is not valid YAML \(config\.unreadable\)/);
      expect(text).toMatch(/remedy +give a YAML file with --config/);
      expect(text.includes("led to")).toBe(ledTo);
      expect(text.includes("start another node")).toBe(ledTo);
      expect(renderError(fromErrorRecord(JSON.parse(JSON.stringify(toErrorRecord(thrown)))), view)).toBe(text);
    }
  });

  it("says a reason once where the message has it already", () => {
    const cause = new Error("listen EADDRINUSE: address already in use 127.0.0.1:80; x");
    const message = `the dashboard cannot be served: ${cause.message}; choose another port`;
    const text = renderError(new TreadleError("dashboard.unavailable", message, { cause }), view);
    expect(text.split("\n")[0]).toBe(`✗ the dashboard cannot be served: ${cause.message}`);
    expect(text.match(/EADDRINUSE/g)).toHaveLength(1);
    expect(text).toMatch(/remedy +choose another port/);
  });

  it("names the line of the user's own code, and every stack when asked to", () => {
    const error = new TreadleError("call.failed", "call failed", { cause: new RangeError("reward is not finite") });
    const text = renderError(error, view);
    expect(text).toMatch(/code +.*error\.test\.ts:\d+/);
    expect(text).toContain("--verbose");
    const verbose = renderError(error, { ...view, verbose: true });
    expect(verbose).toContain("RangeError: reward is not finite\n    at");
    expect(verbose).not.toContain("add --verbose");
  });

  it("survives whatever was thrown", () => {
    expect(renderError("just text", view)).toBe("✗ just text");
    expect(renderError(undefined, view)).toBe("✗ undefined");
    expect(renderError(new Error(""), view)).toContain("✗ Error");
    const circular = new Error("a");
    circular.cause = circular;
    expect(renderError(circular, view)).toContain("✗ a");
  });

  it("lists every field of an item that does not fit, and takes none of them for a remedy", () => {
    const problems = ["id: expected string, received number", "value: expected number, received string"];
    const error = new TreadleError(
      "channel.invalid-item",
      `item '0' put into channel 'items' does not fit its schema: ${problems.join("; ")}`,
      { details: { problems } },
    );
    const text = renderError(error, view);
    expect(text.split("\n")[0]).toBe("✗ item '0' put into channel 'items' does not fit its schema");
    expect(text).toMatch(/problems +id: expected string.*\n +value: expected number/);
    expect(text).not.toMatch(/remedy +value/);
  });

  it("names a line of the reader's own code, and none of Treadle's", () => {
    const error = new TreadleError("call.failed", "no", { cause: new Error("boom") });
    const inside = new URL("../src/view/error.ts", import.meta.url).pathname;
    (error.cause as Error).stack = `Error: boom\n    at inner (${inside}:1:1)\n    at score (/home/me/task/run.ts:7:3)`;
    expect(renderError(error, view)).toMatch(/code +score \(\/home\/me\/task\/run\.ts:7:3\)/);
    (error.cause as Error).stack = `Error: boom\n    at inner (${inside}:1:1)`;
    expect(renderError(error, view)).not.toMatch(/^ +code/m);
  });
});

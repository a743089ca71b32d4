import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Readable } from "node:stream";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";
import fc from "fast-check";
import { expect, test } from "vitest";
import { failureLine, parseFailure } from "../../src/author/worker-lines.ts";
import { eachLine } from "../../src/node/bounded-lines.ts";
import { reportUntilHeard } from "../../src/node/exit-report.ts";

async function linesOf(chunks: Iterable<Uint8Array>, maxLength: number): Promise<string[]> {
  const lines: string[] = [];
  const stream = Readable.from(chunks, { objectMode: false });
  eachLine(stream, maxLength, (line) => lines.push(line));
  await new Promise((resolve) => stream.once("close", resolve));
  return lines;
}

test("lines are those of the text, each cut, wherever the stream is", async () => {
  const text = fc.array(fc.constantFrom("a", "é", "𝄞", "\n", "\r\n", "\r", "bc"), { maxLength: 40 });
  const cuts = fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 1, maxLength: 30 });
  await fc.assert(
    fc.asyncProperty(text, cuts, fc.integer({ min: 1, max: 12 }), async (parts, sizes, maxLength) => {
      const bytes = Buffer.from(parts.join(""));
      const chunks: Uint8Array[] = [];
      for (let from = 0, i = 0; from < bytes.length; i++) {
        const size = sizes[i % sizes.length] as number;
        chunks.push(bytes.subarray(from, from + size));
        from += size;
      }
      const whole = parts.join("").split(/\r\n|\n|\r/);
      if (whole.at(-1) === "") whole.pop();
      expect(await linesOf(chunks, maxLength)).toEqual(whole.map((line) => line.slice(0, maxLength)));
    }),
  );
});

test("a line that never ends takes no memory", async () => {
  const chunk = Buffer.alloc(2 ** 22, "x"); // more than the longest text of Node, in all
  const endless = function* () {
    for (let i = 0; i < 150; i++) yield chunk;
    yield Buffer.from("\nthe next\n");
  };
  expect(await linesOf(endless(), 5)).toEqual(["xxxxx", "the n"]);
});

test("a failure that no message could carry still says what it was", () => {
  let nested: unknown = "the end";
  for (let level = 0; level < 500; level++) nested = [nested];
  const circular: Record<string, unknown> = {};
  circular["self"] = circular;
  for (const details of [{ nested }, { long: "x".repeat(10 ** 6) }, circular]) {
    const error = Object.assign(new Error("it broke"), { code: "call.failed", details });
    const record = parseFailure(failureLine(error));
    expect(record?.message).toContain("it broke");
    expect(JSON.stringify(record).length).toBeLessThan(200_000);
  }
});

test("NS3: an end is reported until it is heard, and no longer than somebody is there to hear it", async () => {
  let nowMs = 0;
  let numSent = 0;
  let numHeard = Number.POSITIVE_INFINITY;
  const pauses: number[] = [];
  const ports = {
    now: () => nowMs,
    pause: async (ms: number) => {
      pauses.push(ms);
      nowMs += ms;
    },
    send: async () => {
      if (++numSent < numHeard) throw new Error("the runner is cut off");
    },
    isThere: () => true,
    isOver: () => false,
  };
  numHeard = 200;
  await reportUntilHeard(ports);
  expect(numSent).toBe(200);
  expect(Math.max(...pauses)).toBeLessThanOrEqual(3000);
  numSent = 0;
  await reportUntilHeard({ ...ports, isOver: () => numSent === 3 });
  expect(numSent).toBe(3);
  // A runner that is out of sight for a moment, as both look when a network is cut, still waits for it.
  [numSent, numHeard, nowMs] = [0, 9, 0];
  await reportUntilHeard({ ...ports, isThere: () => nowMs < 1000 || nowMs > 10_000 });
  expect(numSent).toBe(9);
  [numSent, numHeard, nowMs] = [0, Number.POSITIVE_INFINITY, 0];
  await reportUntilHeard({ ...ports, isThere: () => nowMs < 1000 });
  expect(nowMs).toBeGreaterThan(15_000);
  expect(nowMs).toBeLessThan(25_000);
});

test("NA3: where no descriptors are left to start a worker with, that one has ended, and the agent goes on", async ({
  skip,
}) => {
  skip(process.platform === "win32", "descriptors are limited by a shell's ulimit");
  const folder = await mkdtemp(join(tmpdir(), "treadle-d-"));
  const agent = new URL("../../src/node/node-agent.ts", import.meta.url).href;
  await writeFile(join(folder, "worker.ts"), "export const nothing = 1;\n");
  const boot = {
    component: "maker",
    rank: 0,
    incarnation: 0,
    devices: [],
    module: pathToFileURL(join(folder, "worker.ts")).href,
  };
  await writeFile(
    join(folder, "starts.mjs"),
    `import { openSync, closeSync } from "node:fs";
     import { NodeAgent } from ${JSON.stringify(agent)};
     const listener = { onHeartbeat: () => {}, onLog: () => {} };
     const agent = new NodeAgent({ name: "a", projectRoot: ${JSON.stringify(folder)}, logs: undefined, rights: undefined, listener });
     const held = [];
     const hold = () => { try { for (;;) held.push(openSync("/dev/null")); } catch {} };
     const free = (number) => { for (const file of held.splice(0, number)) closeSync(file); };
     const reports = [];
     for (const left of [0, 1, 2, 3, 5, 7]) {
       hold();
       free(left);
       const started = await agent.spawn({ boot: ${JSON.stringify(boot)}, env: {} }).catch((error) => error);
       free(Infinity);
       reports.push(started instanceof Error ? started.code : ((await started.exited), "ended"));
     }
     await agent.close();
     process.stdout.write(JSON.stringify(reports));`,
  );
  const script = `ulimit -n 200; exec ${process.execPath} --conditions=source --import ${import.meta.resolve("tsx")} ${join(folder, "starts.mjs")}`;
  const { stdout } = await promisify(execFile)("sh", ["-c", script], { timeout: 120_000 });
  const reports = JSON.parse(stdout) as string[];
  expect(reports).toHaveLength(6);
  for (const report of reports) expect(["ended", "worker.died"]).toContain(report);
  await rm(folder, { recursive: true });
});

import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Script } from "node:vm";
import type { SpanBatch } from "@treadle/contracts";
import { TraceWriter } from "@treadle/observe";
import { syntheticTrace } from "@treadle/observe/testing";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { toHtmlTimeline } from "../src/static/timeline-page.ts";

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "treadle-timeline-"));
  path = join(folder, "trace.jsonl");
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

function write(batches: readonly SpanBatch[]): void {
  using writer = new TraceWriter(path);
  for (const batch of batches) writer.append(batch);
}

describe("a timeline page", () => {
  const output = () => join(folder, "timeline.html");
  const read = (id: string) => {
    const [, json] = new RegExp(`<script type="application/json" id="${id}">(.*?)</script>`, "s").exec(
      readFileSync(output(), "utf8"),
    )!;
    return JSON.parse(json!);
  };

  it("has every span on its worker's lane, and on the lanes of the devices that it occupies", async () => {
    write(syntheticTrace({ steps: 1 }));
    await toHtmlTimeline([path], output(), { title: "a <b> run" });
    const { lanes, names } = read("summary") as { lanes: { label: string; group: string }[]; names: string[] };
    const train = (read("spans") as number[][]).filter((row) => names[row[3]!] === "forward-backward");
    expect(train.map((row) => lanes[row[0]!]!.label).sort()).toEqual(["actor/0", "actor/1", "gpu:0", "gpu:1"]);
    expect(train.every((row) => row[2] === 520_000)).toBe(true);
    expect(lanes.some(({ label }) => label === "runner")).toBe(true);
  });

  it("needs no network, cannot be broken out of by a name, and carries a script that parses", async () => {
    const [batch] = syntheticTrace({ steps: 1 });
    batch!.records[0]!.name = "</script><script>alert(1)</script>";
    write([batch!]);
    await toHtmlTimeline([path], output(), { title: "x</title><script>" });
    const html = readFileSync(output(), "utf8");
    expect(html).not.toMatch(/(?:src|href)\s*=|@import|fetch\(|alert\(1\)<\/script>/);
    expect(html).not.toContain("x</title>");
    const script = /<script>\n("use strict"[\s\S]*?)<\/script>/.exec(html)![1]!;
    expect(() => new Script(script)).not.toThrow();
  });

  it("leaves the shortest spans out when there are too many, and says so", async () => {
    write(syntheticTrace());
    const { numHidden } = await toHtmlTimeline([path], output(), { maxSpans: 60 });
    expect(numHidden).toBeGreaterThan(0);
    const { names } = read("summary") as { names: string[] };
    const shown = new Set((read("spans") as number[][]).map((row) => names[row[3]!]));
    expect(shown.has("episodes.put")).toBe(false);
    expect(shown.has("forward-backward")).toBe(true);
    expect(read("summary").numHidden).toBe(numHidden);
  });

  it("joins by an arrow what goes on at another rank, in whatever order it was recorded, and nothing that has one end", async () => {
    const episode = (startMs: number, flows: { flowOut?: string; flowIn?: string }) =>
      ({ kind: "span", name: "7*8/0", category: "episode", startMs, durationMs: 100, ...flows }) as const;
    write([
      {
        worker: "rollout/0",
        pid: 1,
        dropped: 0,
        records: [episode(1000, { flowOut: "a" }), episode(1250, { flowIn: "b" })],
      },
      { worker: "rollout/1", pid: 2, dropped: 0, records: [episode(1110, { flowIn: "a", flowOut: "b" })] },
      { worker: "rollout/2", pid: 3, dropped: 0, records: [episode(1000, { flowOut: "lost" })] },
    ]);
    await toHtmlTimeline([path], output());
    const { arrows, lanes } = read("summary") as { arrows: number[][]; lanes: { label: string }[] };
    const named = arrows.map(([from, fromUs, to, toUs]) => [lanes[from!]!.label, fromUs, lanes[to!]!.label, toUs]);
    expect(named.sort((a, b) => Number(a[1]) - Number(b[1]))).toEqual([
      ["rollout/0", 100_000, "rollout/1", 110_000],
      ["rollout/1", 210_000, "rollout/0", 250_000],
    ]);
  });

  it("is written for an empty trace, too", async () => {
    write([]);
    expect(await toHtmlTimeline([path], output())).toEqual({ numSpans: 0, numHidden: 0 });
  });
});

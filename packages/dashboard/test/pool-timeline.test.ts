import { appendFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { Script } from "node:vm";
import type { PoolEntry, SpanRecord } from "@treadle/contracts";
import { TraceWriter } from "@treadle/observe";
import type { Browser } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { toHtmlPoolTimeline } from "../src/static/pool-timeline.ts";
import { findChromium, openChromium } from "../src/testing/index.ts";

const originMs = 1_700_000_000_000;
const hostile = "</script><img src=x onerror=\"document.title='broken'\">";
const runs = ["one", hostile] as const;

/** The first holds a device, the second waits, begins beside it, and holds it alone in the end. */
const entries: readonly PoolEntry[] = [
  { type: "stage", atMs: originMs - 5000, run: "one", stage: "resident" },
  { type: "run", atMs: originMs - 5000, run: "one", runId: "id-of-one" },
  { type: "stage", atMs: originMs, run: hostile, stage: "resident" },
  { type: "holds", atMs: originMs, run: "one", token: 1, devices: ["gpu:0", "gpu:1"], work: "rollout@a-b" },
  { type: "waits", atMs: originMs + 1000, run: hostile, on: { type: "devices", runs: ["one"] } },
  {
    ...{ type: "decided", atMs: originMs + 1000 },
    decision: {
      type: "after",
      run: hostile,
      devices: ["gpu:0"],
      others: ["one"],
      why: "both take longer <b>together</b>",
    },
  },
  {
    ...{ type: "decided", atMs: originMs + 2000 },
    decision: { type: "beside", run: hostile, devices: ["gpu:0"], others: ["one"], why: "83 % as long together" },
  },
  { type: "holds", atMs: originMs + 2000, run: hostile, token: 2, devices: ["gpu:0"], work: "train@c-d" },
  { type: "waits", atMs: originMs + 2000, run: hostile, on: null },
  { type: "released", atMs: originMs + 3000, token: 1 },
  { type: "holds", atMs: originMs + 3500, run: hostile, token: 2, devices: ["gpu:0"], work: "rollout@e-f" },
  { type: "stage", atMs: originMs + 4000, run: "one", stage: "gone" },
];

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "treadle-pool-page-"));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const historyFile = () => join(folder, "pool-x.jsonl");
const output = () => join(folder, "pool-x.html");
const lines = (all: readonly PoolEntry[]) => all.map((entry) => `${JSON.stringify(entry)}\n`).join("");

/** Writes the page; the first run has a trace, unless it has none. */
async function draw(options: { readonly trace?: string | undefined; readonly files?: readonly string[] } = {}) {
  const history = options.files ?? [historyFile()];
  const traceOf = async (runId: string) => (runId === "id-of-one" ? options.trace : undefined);
  const told = await toHtmlPoolTimeline({ history, traceOf, title: "a <b> pool" }, output());
  const html = readFileSync(output(), "utf8");
  const read = (id: string) =>
    JSON.parse(new RegExp(`<script type="application/json" id="${id}">(.*?)</script>`, "s").exec(html)![1]!);
  const summary = read("summary") as {
    readonly lanes: readonly { readonly group: string; readonly label: string; readonly sub: number }[];
    readonly names: readonly string[];
    readonly categories: readonly string[];
    readonly components: readonly string[];
    readonly waited: readonly unknown[];
    readonly decisions: readonly (readonly unknown[])[];
  };
  const rows = (read("spans") as number[][]).map(([lane, us, lasts, name, category, component]) => {
    const { group, label, sub } = summary.lanes[lane!]!;
    const on = group === "devices" ? `${label}/${sub}` : label;
    const what = `${summary.categories[category!]} ${summary.names[name!]}`;
    return { on, what, of: summary.components[component!]!, seconds: [us! / 1e6, (us! + lasts!) / 1e6] };
  });
  return { ...told, html, summary, rows };
}

const computed = (startMs: number, durationMs: number, devices: readonly string[]): SpanRecord => ({
  ...{ kind: "span", name: "decode", category: "compute", startMs: originMs + startMs, durationMs, step: 3 },
  devices: [...devices],
});
function writeTrace(records: SpanRecord[]): string {
  const path = join(folder, "trace.jsonl");
  using writer = new TraceWriter(path);
  writer.append({ worker: "rollout/0", pid: 1, dropped: 0, records });
  return path;
}

describe("a page of all runs of a pool", () => {
  it("has leases and what computed under them on lanes of devices, two where runs share one, and waits on lanes of runs", async () => {
    writeFileSync(historyFile(), lines(entries));
    const trace = writeTrace([computed(100, 500, ["gpu:0", "gpu:1"]), computed(2100, 800, ["gpu:0"])]);
    const { rows, summary, lacks } = await draw({ trace });
    expect(rows.filter(({ on }) => on.startsWith("gpu:"))).toEqual([
      { on: "gpu:0/0", what: "lease lease 1", of: "one", seconds: [0, 3] },
      { on: "gpu:1/0", what: "lease lease 1", of: "one", seconds: [0, 3] },
      { on: "gpu:0/1", what: "lease lease 2", of: hostile, seconds: [2, 4] },
      // Without a trace, as the run said it.
      { on: "gpu:0/1", what: "compute train", of: `${hostile} · train`, seconds: [2, 3.5] },
      { on: "gpu:0/1", what: "compute rollout", of: `${hostile} · rollout`, seconds: [3.5, 4] },
      { on: "gpu:0/0", what: "compute decode", of: "one · rollout", seconds: [0.1, 0.6] },
      { on: "gpu:1/0", what: "compute decode", of: "one · rollout", seconds: [0.1, 0.6] },
      { on: "gpu:0/0", what: "compute decode", of: "one · rollout", seconds: [2.1, 2.9] },
    ]);
    expect(rows.filter(({ on }) => !on.startsWith("gpu:"))).toEqual([
      { on: hostile, what: "waits devices of 'one'", of: "one", seconds: [1, 2] },
      { on: hostile, what: "after waits for its turn", of: hostile, seconds: [1, 1] },
      { on: hostile, what: "beside begins beside", of: hostile, seconds: [2, 2] },
    ]);
    expect(summary.waited).toEqual([[hostile, "devices of 'one'", 1_000_000]]);
    expect(summary.decisions.map(([us, type, , , devices, why]) => [us, type, devices, why])).toEqual([
      [1_000_000, "after", "gpu:0", "both take longer <b>together</b>"],
      [2_000_000, "beside", "gpu:0", "83 % as long together"],
    ]);
    expect(lacks).toEqual([`what '${hostile}' computed: it has no trace here`]);
  });

  it("ends what was open where lines are lost, unless it is said again, and says so", async () => {
    writeFileSync(
      historyFile(),
      lines([
        { type: "holds", atMs: originMs, run: "one", token: 1, devices: ["gpu:0"] },
        { type: "holds", atMs: originMs, run: "two", token: 2, devices: ["gpu:1"], work: "train@a" },
        { type: "waits", atMs: originMs, run: "one", on: { type: "devices", runs: ["two"] } },
        { type: "lost", atMs: originMs + 3000 },
      ]) +
        `\n${lines([
          { type: "holds", atMs: originMs + 3001, run: "two", token: 2, devices: ["gpu:1"], work: "train@a" },
          { type: "stage", atMs: originMs + 9000, run: "one", stage: "gone" },
        ])}`,
    );
    const { rows, lacks } = await draw();
    expect(rows).toEqual([
      { on: "gpu:0/0", what: "lease lease 1", of: "one", seconds: [0, 3] },
      { on: "gpu:1/0", what: "lease lease 2", of: "two", seconds: [0, 9] },
      { on: "gpu:1/0", what: "compute train", of: "two · train", seconds: [0, 9] },
      { on: "one", what: "waits devices of 'two'", of: "two", seconds: [0, 3] },
    ]);
    expect(lacks).toContain("what the pool could not write: lines are lost at 1 place");
    expect(lacks.join()).not.toMatch(/not whole/);
  });

  it("needs no network, cannot be broken out of by a name, and carries a script that parses", async () => {
    writeFileSync(historyFile(), lines(entries));
    const { html } = await draw();
    expect(html).not.toMatch(/(?:src|href)\s*=[^"]*"http|@import|fetch\(|<img|<b>together/);
    expect(html).not.toContain("a <b> pool");
    const script = /<script>\n("use strict"[\s\S]*?)<\/script>/.exec(html)![1]!;
    expect(() => new Script(script)).not.toThrow();
  });

  it("is drawn from what is whole of a history and of a trace: what is open lasts until the last entry", async () => {
    writeFileSync(join(folder, "pool-x.old.jsonl"), lines(entries.slice(0, 4)));
    writeFileSync(
      historyFile(),
      `${lines(entries.slice(2, 9))}{"type":"stage","atMs":${originMs + 2500},"run":"one","stage":"ending"}\n{"type":"released","atMs":1`,
    );
    const trace = writeTrace([computed(100, 500, ["gpu:0"])]);
    appendFileSync(trace, '{"worker":"rollout/0","pid":1,"dro');
    const files = [join(folder, "pool-x.old.jsonl"), historyFile()];
    const { rows, lacks } = await draw({ trace, files });
    const leases = rows.filter(({ what }) => what.startsWith("lease"));
    expect(leases.map(({ on, seconds }) => [on, ...seconds])).toEqual([
      ["gpu:0/0", 0, 2.5],
      ["gpu:1/0", 0, 2.5],
      ["gpu:0/1", 2, 2.5],
    ]);
    expect(rows.filter(({ what }) => what === "compute decode")).toHaveLength(1);
    expect(lacks[0]).toMatch(/^1 line of the history that is not whole/);
  });

  it("is drawn without what a run computed where its trace is none, and says so", async () => {
    writeFileSync(historyFile(), lines(entries));
    const trace = join(folder, "trace.jsonl");
    writeFileSync(trace, '{"no":"trace"}\n');
    const { rows, lacks } = await draw({ trace });
    expect(rows.some(({ what, of }) => what === "compute rollout" && of === "one · rollout")).toBe(true);
    expect(lacks.at(-1)).toMatch(/^what 'one' computed: line 1 of .* is not a batch of spans/);
  });

  it("is refused for a history that holds nothing, or is not there", async () => {
    await expect(draw()).rejects.toMatchObject({ code: "run.incomplete" });
    writeFileSync(historyFile(), '{"type":"hol');
    await expect(draw()).rejects.toMatchObject({ code: "run.incomplete" });
  });
});

const path = findChromium();
describe.skipIf(path === undefined)("a page of all runs in Chromium", () => {
  let browser: Browser;
  beforeAll(async () => {
    browser = await openChromium(path as string);
  });
  afterAll(() => browser?.close());

  it("shows hostile names as text, tells of a wait under the pointer, and goes to a decision that is chosen", async () => {
    writeFileSync(historyFile(), lines(entries));
    await draw();
    const page = await browser.newPage({ viewport: { width: 1300, height: 800 } });
    const problems: string[] = [];
    page.on("pageerror", (error) => problems.push(error.message));
    await page.goto(pathToFileURL(output()).href);
    const decisions = page.locator("#decisions tr");
    expect(await decisions.count()).toBe(2);
    expect(await decisions.nth(0).textContent()).toContain("both take longer <b>together</b>");
    expect(await page.locator("#waited").textContent()).toContain(hostile);
    expect(await page.title()).not.toBe("broken");
    const wholeRange = await page.locator("#range").textContent();
    // The lane of the second run is the last one; it waits from 1 s to 2 s of 4.
    const box = (await page.locator("#lanes").boundingBox())!;
    await page.mouse.move(
      box.x + 150 + (box.width - 150) * (1.5 / 4),
      box.y + 26 + 26 + 3 * 24 + 26 + 24 * order() + 8,
    );
    await expect.poll(() => page.locator("#tip").textContent(), { timeout: 60_000 }).toContain("devices of 'one'");
    await decisions.nth(1).click();
    await expect.poll(() => page.locator("#range").textContent(), { timeout: 60_000 }).not.toBe(wholeRange);
    expect(problems).toEqual([]);
    await page.close();
  });
});

/** Lanes of runs come in the order in which runs came. */
const order = (): number => runs.indexOf(hostile);

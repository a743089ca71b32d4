import { appendFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { completionFolder } from "@treadle/contracts";
import { TraceWriter } from "@treadle/observe";
import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { type Dashboard, serveDashboard } from "../src/serve.ts";
import { toHtmlTimeline } from "../src/static/timeline-page.ts";
import { findChromium, openChromium, writeSyntheticFolder } from "../src/testing/index.ts";
import type { ActionStatus } from "../src/view/wire.ts";

const actionStatus: ActionStatus = {
  ...{ policy: "unit-aware", isolation: "control groups", uptimeSeconds: 70, draining: false },
  ...{ waiting: 3, running: 2, trajectories: 5, tenants: { ours: { waiting: 3, running: 2 } } },
  kinds: {
    pytest: {
      ...{ completed: 4, failed: 1, cancelled: 0, actSeconds: 3, queueingSeconds: 1, executionSeconds: 1.9 },
      ...{ overheadSeconds: 0.1, longestActSeconds: 6, predictionError: 0.08 },
      curve: { source: "measured", efficiency: [{ units: 8, efficiency: 0.75 }] },
    },
  },
  resources: { cpu: { units: 8, held: 6, heldSeconds: 300, timeline: Array.from({ length: 60 }, (_, i) => i % 9) } },
  hosts: {
    a: { cores: 8, held: 6, memoryBytes: 2 ** 34, reservedBytes: 2 ** 32, away: "" },
    b: { cores: 8, held: 0, memoryBytes: 2 ** 34, reservedBytes: 0, away: "it has said nothing for 15 s" },
  },
  started: [
    {
      ...{ action: "a1", kind: "pytest", tenant: "ours", secondsAgo: 2, waitedSeconds: 0.4, units: { cpu: 4 } },
      ...{
        expectedSeconds: 1.5,
        why: "most marginal gain: unit-aware started 1 of 3 candidates, 2 waiting, 2 cpu free",
      },
    },
  ],
};

/** However loaded the machine is. */
const patienceMs = 150_000;
const eventually = (look: () => Promise<unknown>) => expect.poll(look, { timeout: patienceMs });

const path = findChromium();
if (path === undefined)
  console.warn("no Chromium here: tests in a browser are skipped; see packages/dashboard/src/testing/chromium.ts");

describe.skipIf(path === undefined)("the live page in Chromium", () => {
  const runId = "20260101-000000-reasoning-grpo-0042";
  const hostile = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>";
  let root: string;
  let dashboard: Dashboard;
  let browser: Browser;
  let page: Page;
  const problems: string[] = [];

  beforeAll(async () => {
    root = mkdtempSync(join(tmpdir(), "treadle-browser-"));
    const folder = join(root, runId);
    writeSyntheticFolder(folder, 30);
    const completions = join(folder, "artifacts", completionFolder);
    mkdirSync(completions, { recursive: true });
    const record = (reward: number, text: string) =>
      JSON.stringify({
        ...{ step: 1, worker: "rollout/0", promptId: `p${reward}`, reward, length: 3, finishReason: "stop" },
        turns: [
          { by: "prompt", text: "12+34=" },
          { by: "policy", text, pieces: [text, "6"], logprobs: [-0.1, -2], versions: [1, 1] },
        ],
      });
    writeFileSync(join(completions, "step-000001-rollout-0.jsonl"), `${record(1, "4")}\n${record(0, hostile)}\n`);
    dashboard = await serveDashboard({ runsRoot: root, actions: async () => actionStatus });
    browser = await openChromium(path as string);
    page = await browser.newPage({ viewport: { width: 1300, height: 900 } });
    page.setDefaultTimeout(patienceMs);
    page.on("pageerror", (error) => problems.push(error.message));
    page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  });
  afterAll(async () => {
    await browser?.close();
    await dashboard?.close();
    rmSync(root, { recursive: true, force: true });
  });

  it("lists runs, opens one, follows it, and draws every tab without an error", async () => {
    await page.goto(dashboard.url);
    await page.getByText("reasoning-grpo-0042").click();
    await page.locator("t-chart canvas").first().waitFor();
    await page.getByText("Why idle").waitFor();
    const step = page.locator(".tile", { hasText: "step" }).first();
    await eventually(() => step.textContent()).toContain("30");
    appendFileSync(join(root, runId, "metrics.jsonl"), '{"step":31,"seconds":1,"reward":0.9}\n');
    await eventually(() => step.textContent()).toContain("31");
    // Keys reach the tabs.
    await page.keyboard.press("2");
    await page.locator("t-lanes canvas").first().waitFor();
    await eventually(() => page.locator("t-lanes .toolbar .small").textContent()).toMatch(/[1-9]\d* spans/);
    for (const key of ["4", "5", "6"]) {
      await page.keyboard.press(key);
      await page.locator(".card, .empty").first().waitFor();
    }
    await page.keyboard.press("4");
    await page.getByText("a step was predicted to take").waitFor();
    await page.getByAltText("components and the channels between them").waitFor();
    await eventually(() => page.evaluate("document.querySelector('.plan-svg img').naturalWidth")).toBeGreaterThan(100);
    expect(problems).toEqual([]);
  });

  it("shows what an action service does: its resources over time, kinds, and decisions with their reasons", async () => {
    await page.goto(`${dashboard.url}#/actions`);
    await page.locator("t-chart canvas").first().waitFor();
    await page.getByText("most marginal gain").waitFor();
    await page.getByText("it has said nothing for 15 s").waitFor();
    await page.locator("td", { hasText: "4.0 GiB of 16.0 GiB" }).waitFor();
    expect(await page.locator("td", { hasText: "pytest" }).count()).toBeGreaterThan(1);
    const isTooWide = () => page.evaluate("document.documentElement.scrollWidth > innerWidth");
    expect(await isTooWide()).toBe(false);
    // A number stays with its unit, and a column of words is some words wide, also on a telephone.
    await page.setViewportSize({ width: 400, height: 900 });
    const numLines = (text: string) =>
      page.getByText(text).evaluate((cell) => {
        const range = cell.ownerDocument.createRange();
        range.selectNodeContents(cell);
        return new Set([...range.getClientRects()].map(({ top }) => Math.round(top))).size;
      });
    expect(await numLines("measured, 0.75 at 8")).toBe(1);
    expect(await numLines("most marginal gain")).toBeLessThan(5);
    expect(await isTooWide()).toBe(false);
    await page.setViewportSize({ width: 1300, height: 900 });
    expect(problems).toEqual([]);
  });

  it("shows a hostile completion as text, and filters episodes by reward", async () => {
    await page.goto(`${dashboard.url}#/run/${runId}/episodes`);
    await page.locator(".list .row").first().waitFor();
    expect(await page.locator(".list .row").count()).toBe(2);
    await page.getByPlaceholder("most").first().fill("0.5");
    await eventually(() => page.locator(".list .row").count()).toBe(1);
    await page.locator(".list .row").click();
    await eventually(() => page.locator(".turn.policy").textContent()).toContain("<script>");
    expect(await page.title()).not.toBe("broken");
    expect(problems).toEqual([]);
  });

  it("draws a timeline with arrows to where spans go on", async () => {
    const trace = join(root, "moves.jsonl");
    const timeline = join(root, "moves.html");
    const episode = (worker: string, startMs: number, flows: { flowOut?: string; flowIn?: string }) => ({
      ...{ worker, pid: 1, dropped: 0 },
      records: [{ kind: "span", name: "7*8/0", category: "episode", startMs, durationMs: 100, ...flows } as const],
    });
    {
      using writer = new TraceWriter(trace);
      writer.append(episode("rollout/0", 1000, { flowOut: "7*8/0 2" }));
      writer.append(episode("rollout/1", 1150, { flowIn: "7*8/0 2" }));
    }
    await toHtmlTimeline([trace], timeline);
    await page.goto(pathToFileURL(timeline).href);
    const drawing = () => page.evaluate("draw(); document.getElementById('lanes').toDataURL()");
    const whole = await drawing();
    expect(await drawing()).toBe(whole);
    await page.evaluate("summary.arrows.length = 0");
    expect(await drawing()).not.toBe(whole);
    expect(problems).toEqual([]);
  });

  it("fits a narrow screen, and says so when the server is gone and when it is back", async () => {
    await page.setViewportSize({ width: 380, height: 800 });
    await page.goto(`${dashboard.url}#/run/${runId}`);
    await page.getByText("Why idle").waitFor();
    expect(await page.evaluate("document.documentElement.scrollWidth - innerWidth")).toBeLessThanOrEqual(0);
    const { port, searchParams } = new URL(dashboard.url);
    const token = searchParams.get("token") ?? undefined;
    await dashboard.close();
    await page.getByText("connection lost").waitFor();
    dashboard = await serveDashboard({ runsRoot: root, port: Number(port), token });
    await page.getByText("connection lost").waitFor({ state: "detached" });
  });
});

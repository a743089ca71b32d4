/** The live page with as much as a long run leaves: how soon it is there, and how it moves, in Chromium. */
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { completionFolder, median, type TraceRecord } from "@treadle/contracts";
import { serveDashboard } from "@treadle/dashboard/serve";
import { chromiumIn, findChromium, openChromium, writeSyntheticFolder } from "@treadle/dashboard/testing";
import { TraceWriter } from "@treadle/observe";
import { unpackPackages } from "@treadle/transport/testing";
import { type BenchRow, row, timed } from "./row.ts";

const numSpans = 1_000_000;
const startMs = Date.UTC(2026, 0, 1);
const spansOfLine = 500;
const numEpisodes = 10_000;
const episodesOfFile = 500;
const runId = "20260101-000000-reasoning-grpo-0001";
const openLimitMs = 2000;
const frameLimitMs = 1000 / 30;
const numWheels = 90;
const lookMs = 20;
const mostMs = 120_000;

/** As `TraceWriter` and rollout workers leave them. */
async function writeFolder(root: string): Promise<void> {
  const folder = join(root, runId);
  writeSyntheticFolder(folder, 40);
  await rm(join(folder, "trace.jsonl"));
  using trace = new TraceWriter(join(folder, "trace.jsonl"));
  for (let first = 0; first < numSpans; first += spansOfLine) {
    const worker = `rollout/${(first / spansOfLine) % 8}`;
    const records = Array.from({ length: spansOfLine }, (_, i): TraceRecord => {
      const at = Math.floor(first / 8) + i;
      const common = { kind: "span", startMs: startMs + at * 4, durationMs: 3, step: 1 + (at >> 12) } as const;
      return i % 5 === 0
        ? { ...common, name: "episodes", category: "channel-wait" }
        : { ...common, name: "decode", category: "compute", devices: [`cpu:${(first / spansOfLine) % 8}`] };
    });
    trace.append({ worker, pid: 1, dropped: 0, records });
  }
  const completions = join(folder, "artifacts", completionFolder);
  await mkdir(completions, { recursive: true });
  for (let first = 0; first < numEpisodes; first += episodesOfFile) {
    const lines = Array.from({ length: episodesOfFile }, (_, i) =>
      JSON.stringify({
        ...{ step: 1 + first / episodesOfFile, worker: "rollout/0", promptId: `p${first + i}`, reward: i % 2 },
        ...{ length: 3, finishReason: "stop", answer: "46" },
        turns: [
          { by: "prompt", text: "12+34=" },
          { by: "policy", text: "46|", pieces: ["4", "6", "|"], logprobs: [-0.1, -0.2, -2], versions: [1, 1, 1] },
        ],
      }),
    );
    const step = String(1 + first / episodesOfFile).padStart(6, "0");
    await writeFile(join(completions, `step-${step}-rollout-0.jsonl`), `${lines.join("\n")}\n`);
  }
}

/** In the page: milliseconds between frames while the wheel turns over what `selector` finds. */
const framesOf = `(async ({ selector, numWheels }) => {
  const element = document.querySelector(selector);
  const box = element.getBoundingClientRect();
  const at = { bubbles: true, cancelable: true, clientX: box.left + box.width / 2, clientY: box.top + 40 };
  const times = [];
  for (let i = 0; i < numWheels; i++) {
    element.dispatchEvent(new WheelEvent("wheel", { ...at, deltaY: i % 30 < 15 ? -120 : 120 }));
    if (element.scrollHeight > element.clientHeight) element.scrollTop += 400;
    times.push(await new Promise((resolve) => requestAnimationFrame(resolve)));
  }
  return times.slice(1).map((time, i) => time - times[i]);
})`;

const notMeasured = "other browsers, a screen, a network, or the writing of the trace";

/** Against the limit that each is to keep. */
export async function* benchDashboard(): AsyncGenerator<BenchRow> {
  const root = await mkdtemp(join(tmpdir(), "treadle-bench-dashboard-"));
  try {
    await writeFolder(root);
    const trace = join(root, runId, "trace.jsonl");
    const parseMs = await timed(async () => {
      for (const line of (await readFile(trace, "utf8")).split("\n")) if (line !== "") JSON.parse(line);
    });
    const dashboard = await serveDashboard({ runsRoot: root });
    try {
      const entered = await fetch(dashboard.url, { redirect: "manual" });
      const headers = { cookie: entered.headers.get("set-cookie")?.split(";")[0] ?? "" };
      const ask = async (path: string) => fetch(new URL(`/api/runs/${runId}${path}`, dashboard.url), { headers });
      const serveMs = await timed(async () => {
        for (let known = 0; known < numSpans; ) {
          await (await ask(`/spans?from=${known}`)).arrayBuffer();
          const { versions } = (await (await ask("")).json()) as { versions: { spans: number } };
          known = versions.spans;
        }
      });
      yield row({
        name: "a million spans, from the file to the server's table",
        value: serveMs,
        unit: "ms",
        baseline: parseMs,
        against: "JSON.parse of every line",
        notMeasured: "drawing",
      });
    } finally {
      await dashboard.close();
    }
    yield* inBrowser(root);
  } finally {
    await rm(root, { recursive: true, force: true });
  }
}

const parts = [
  {
    name: "timeline of a million spans",
    tab: "timeline",
    seen: /1\s?000\s?000 spans/,
    moved: "t-lanes .scroller canvas",
  },
  { name: "list of ten thousand episodes", tab: "episodes", seen: /10\s?000 episodes/, moved: "#episode-list" },
];

/** Each page in a browser that was just started, from a server that has read nothing; then once more from the same server. */
async function* inBrowser(root: string): AsyncGenerator<BenchRow> {
  const unpacked = async () => chromiumIn(await unpackPackages("chromium", ["chromium"], { whole: true }));
  const path = findChromium() ?? (await unpacked().catch(() => undefined));
  for (const { name, ...part } of parts) {
    if (path === undefined) {
      const unmeasured = "no Chromium here, nor in packages of Debian (TREADLE_CHROMIUM names one); ";
      yield row({ name: `${name}: opened`, value: null, unit: "ms", notMeasured: unmeasured + notMeasured });
      continue;
    }
    const { openMs, againMs, frames } = await measurePage(path, root, part);
    for (const [what, value, baseline] of [
      ["opened", openMs, openLimitMs],
      ["opened again", againMs, openLimitMs],
      ["a frame while it is scrolled or zoomed, the median", median(frames), frameLimitMs],
      ["the same, one in twenty is longer", quantile(frames, 0.95), frameLimitMs],
    ] as const)
      yield row({
        name: `${name}: ${what}`,
        ...{ value, unit: "ms", baseline, against: "the limit", ratioAtMost: 1, notMeasured },
      });
  }
}

async function measurePage(path: string, root: string, { tab, seen, moved }: Omit<(typeof parts)[number], "name">) {
  const dashboard = await serveDashboard({ runsRoot: root });
  const browser = await openChromium(path).catch(async (error: unknown) => {
    await dashboard.close();
    throw error;
  });
  try {
    const page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
    const open = () =>
      timed(async () => {
        await page.goto(`${dashboard.urlOf(runId)}/${tab}`);
        // Playwright's own waiting looks twice a second after its first looks.
        for (const untilMs = performance.now() + mostMs; ; await delay(lookMs)) {
          if (seen.test((await page.evaluate("document.body.innerText")) as string)) return;
          if (performance.now() > untilMs) throw new Error(`the tab '${tab}' was not there within ${mostMs} ms`);
        }
      });
    const openMs = await open();
    await page.goto("about:blank");
    const againMs = await open();
    const script = `${framesOf}(${JSON.stringify({ selector: moved, numWheels })})`;
    return { openMs, againMs, frames: (await page.evaluate(script)) as number[] };
  } finally {
    await browser.close();
    await dashboard.close();
  }
}

const quantile = (values: readonly number[], share: number): number =>
  values.toSorted((a, b) => a - b)[Math.floor(share * (values.length - 1))] as number;

import { appendFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Script } from "node:vm";
import { completionFolder, type EpisodeRecording } from "@treadle/contracts";
import { traceLine } from "@treadle/observe";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { readRun, renderReport, writeReport } from "../src/static/report.ts";
import { writeSyntheticFolder } from "../src/testing/index.ts";

let folder: string;
beforeEach(() => {
  folder = join(mkdtempSync(join(tmpdir(), "treadle-report-")), "reasoning-grpo-0042");
});
afterEach(() => rmSync(join(folder, ".."), { recursive: true, force: true }));

/** A ball that rests, a rod that turns and a box on its edge. */
function writeRecording(
  name: string,
  step: number,
  numFrames: number,
  change: (recording: EpisodeRecording) => void = () => {},
): void {
  const recording: EpisodeRecording = {
    environment: "spinner",
    step,
    policyVersion: step,
    return: 3.25,
    numActions: numFrames,
    secondsPerFrame: 0.2,
    shapes: [{ kind: "sphere", radius: 0.1 }, { kind: "capsule", radius: 0.05 }, { kind: "box" }],
    frames: Array.from({ length: numFrames }, (_, at) => [
      [1, 2],
      [0, 0, Math.cos(at), Math.sin(at)],
      [0, 0, 0.1, 0.1, -0.1, 0.1, 0.05, 0],
    ]),
  };
  change(recording);
  mkdirSync(join(folder, "artifacts/episodes"), { recursive: true });
  writeFileSync(join(folder, "artifacts/episodes", name), JSON.stringify(recording));
}

function accuraciesIn(html: string): { xs: number[]; series: { values: number[] }[] } {
  const [, json] = /aria-label="accuracy">[\s\S]*?<script type="application\/json">(.*?)<\/script>/.exec(html)!;
  return JSON.parse(json!);
}

describe("a report", () => {
  it("counts the prompts that no step trained by the cause that the journal has, and names some", async () => {
    writeSyntheticFolder(folder, 20);
    const step = (at: number, cut?: object) => ({ step: at, seconds: 1, metrics: {}, items: ["a"], cut });
    const lines = [
      { type: "step", ...step(1, { late: ["p1", "p2"], alike: ["<b>"] }), state: {} },
      { type: "step", ...step(2), state: {} },
      { type: "steps", steps: [step(3, { late: ["p3", "p4"] }), step(4)], state: {} },
      { type: "step", ...step(5, { own: "no list" }), state: {} },
    ];
    writeFileSync(join(folder, "journal.jsonl"), `${lines.map((line) => JSON.stringify(line)).join("\n")}\n{"cut`);
    const html = renderReport(await readRun(folder));
    const [, table = ""] = /Prompts that no step trained<\/h2>\s*<table>(.*?)<\/table>/.exec(html) ?? [];
    const cells = [...table.matchAll(/<td>(.*?)<\/td>/g)].map(([, text]) => text);
    expect(cells.slice(1, 4)).toEqual(["4", "2", "p1, p2, p3, …"]);
    expect(cells[4]).toContain("rollout.resample");
    expect(cells.slice(5)).toEqual(["1", "1", "&lt;b&gt;"]);
    writeFileSync(join(folder, "journal.jsonl"), "");
    expect(renderReport(await readRun(folder))).not.toContain("Prompts that no step trained");
  });

  it("shows what the policy wrote in the first step that was sampled and in the last, as text", async () => {
    writeSyntheticFolder(folder, 20);
    mkdirSync(join(folder, "artifacts", completionFolder), { recursive: true });
    for (const [step, text] of [
      [1, "9<script>"],
      [10, "45"],
      [20, "46"],
    ] as const) {
      const record = {
        ...{ step, worker: "rollout/0", promptId: "p", reward: 0.5, length: 2, finishReason: "stop" },
        turns: [
          { by: "prompt", text: "12+34=" },
          { by: "policy", text },
        ],
      };
      const name = `step-${String(step).padStart(6, "0")}-rollout-0.jsonl`;
      writeFileSync(join(folder, "artifacts", completionFolder, name), `${JSON.stringify(record)}\n`);
    }
    const html = renderReport(await readRun(folder));
    expect(html).toContain("<td>12+34=</td><td>9&lt;script&gt;</td><td>0.50</td>");
    expect(html).toContain("<td>12+34=</td><td>46</td>");
    expect(html).not.toContain("<td>45</td>");
  });

  it("shows curves, step time, shares, plan and configuration, and fetches nothing", async () => {
    writeSyntheticFolder(folder, 60);
    const path = join(folder, "report.html");
    await writeReport(folder, path);
    const html = readFileSync(path, "utf8");
    const titles = [...html.matchAll(/<figcaption><b>(.*?)<\/b>/g)].map(([, title]) => title);
    expect(titles).toEqual(expect.arrayContaining(["reward", "accuracy", "loss", "wall time", "rollout over time"]));
    expect(html).toContain("<td>in turn with actor</td>");
    expect(html).toMatch(/<td>rollout<\/td><td>generate<\/td><td>120<\/td>/);
    expect(html).toContain("81.0 %");
    expect(html).not.toMatch(/https?:\/\/|src=|@import/);
    expect(html).not.toMatch(/NaN|undefined|Infinity/);
    expect(html).not.toContain("abc123");
    const script = /<script>("use strict"[\s\S]*?)<\/script>/.exec(html)![1]!;
    expect(() => new Script(script)).not.toThrow();
  });

  it("has the timers of workers, a worker's own too: how often, how long in all and on average, the longest first", async () => {
    writeSyntheticFolder(folder, 2);
    const own = (startMs: number, durationMs: number) =>
      ({ kind: "span", name: "score <fast>", category: "compute", startMs, durationMs }) as const;
    appendFileSync(
      join(folder, "trace.jsonl"),
      `${traceLine({ worker: "judge/0", pid: 2, dropped: 0, records: [own(0, 30_000), own(30_000, 10_000)] })}\n`,
    );
    const html = renderReport(await readRun(folder));
    const [, table = ""] = /What its timers measured[\s\S]*?<tbody>(.*?)<\/tbody>/.exec(html) ?? [];
    const rows = table.split("</tr>").map((row) => row.replace(/<[^>]*>/g, "|"));
    expect(rows[0]).toBe("||judge||score &lt;fast&gt;||2||40.0 s||20.0 s|");
    expect(rows.map((row) => row.split("||")[1])).toEqual(expect.arrayContaining(["rollout", "inference", "actor"]));
  });

  it("has the data of its curves as they were measured", async () => {
    writeSyntheticFolder(folder, 30);
    const html = renderReport(await readRun(folder));
    const chart = accuraciesIn(html);
    expect(chart.xs).toEqual([0, 10, 20, 30]);
    expect(chart.series[0]!.values[0]).toBe(0.33);
  });

  it("keeps what an imitation taught apart from what the steps did", async () => {
    writeSyntheticFolder(folder, 30);
    const run = await readRun(folder);
    const summary = { ...run.summary!, evalBefore: 0, evalAtStart: 0.169, evalAfter: 0.997 };
    const html = renderReport({ ...run, summary });
    expect(html).toContain("untrained 0.0 %, 16.9 % before the first step");
    expect(html).not.toContain("from 0.0 %");
    expect(accuraciesIn(html)).toMatchObject({ xs: [0, 10, 20, 30], series: [{ values: { 0: 0.169 } }] });
    // The first figure is a later step's where nothing was measured before the first step: the curve starts there.
    const late = { ...run, summary: { ...summary, evalAtStart: null } };
    expect(accuraciesIn(renderReport(late)).xs).toEqual([10, 20, 30]);
  });

  it("draws what a simulator recorded: the last episode's frames, and what moves as an animation", async () => {
    writeSyntheticFolder(folder, 12);
    writeRecording("step-000000.json", 0, 2);
    writeRecording("step-000012.json", 12, 40);
    const html = renderReport(await readRun(folder));
    const episodes = [...html.matchAll(/<figure class="episode">[\s\S]*?<\/figure>/g)].map(([figure]) => figure);
    expect(episodes).toHaveLength(2);
    expect(episodes[0]).toContain("before training");
    expect(episodes[1]).toContain("after step 12");
    // The ball rests; the rod turns; the box stands on its edge, so its shadow has six corners.
    expect(episodes[1]!.match(/<animate /g)).toHaveLength(1);
    expect(episodes[1]).toContain('d="M1 -2h0"');
    expect(/<animate[^>]* values="([^"]*)"/.exec(episodes[1]!)![1]!.split(";")).toHaveLength(40);
    expect(/<path d="([^"]*)Z"/.exec(episodes[1]!)![1]!.split("L")).toHaveLength(6);
    const stills = [...html.matchAll(/aria-label="spinner at ([\d.]+) s"/g)].map(([, seconds]) => Number(seconds));
    expect(stills).toHaveLength(8);
    expect(stills[0]).toBe(0);
    expect(stills.at(-1)).toBe(7.8);
    expect(html).not.toMatch(/NaN|undefined|Infinity/);
  });

  it("leaves out a recording that is none, and lets no name in it become markup", async () => {
    writeSyntheticFolder(folder, 12);
    writeRecording("step-000001.json", 1, 3, (recording) => recording.frames[1]!.pop());
    expect(renderReport(await readRun(folder))).not.toContain('class="episode"');
    writeRecording("step-000002.json", 2, 3, (recording) => {
      recording.environment = '"><img src=x>';
    });
    expect(renderReport(await readRun(folder))).not.toContain("<img");
  });

  it("is written for a run that failed before its first step", async () => {
    writeSyntheticFolder(folder, 1);
    for (const name of ["summary.json", "plan.json", "trace.jsonl"]) rmSync(join(folder, name));
    writeFileSync(join(folder, "metrics.jsonl"), "");
    const html = renderReport(await readRun(folder));
    expect(html).toContain("not finished");
    expect(html).not.toContain("<figure>");
  });

  it("lets no value of the run become markup", async () => {
    writeSyntheticFolder(folder, 12);
    writeFileSync(
      join(folder, "config.json"),
      JSON.stringify({ workflow: "<script>alert(1)</script>", config: { a: "<img onerror=x>" } }),
    );
    const html = renderReport(await readRun(folder));
    expect(html).not.toContain("alert(1)</script><");
    expect(html).not.toContain("<img");
  });
});

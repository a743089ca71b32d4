import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Script } from "node:vm";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { readRun, renderReport, writeReport } from "../src/view/report.ts";
import { writeSyntheticFolder } from "./synthetic-folder.ts";

let folder: string;
beforeEach(() => {
  folder = join(mkdtempSync(join(tmpdir(), "treadle-report-")), "reasoning-grpo-0042");
});
afterEach(() => rmSync(join(folder, ".."), { recursive: true, force: true }));

describe("a report", () => {
  it("shows curves, step time, shares, plan and configuration, and fetches nothing", async () => {
    writeSyntheticFolder(folder, 60);
    const path = join(folder, "report.html");
    await writeReport(folder, path);
    const html = readFileSync(path, "utf8");
    const titles = [...html.matchAll(/<figcaption><b>(.*?)<\/b>/g)].map(([, title]) => title);
    expect(titles).toEqual(expect.arrayContaining(["reward", "accuracy", "loss", "wall time", "rollout over time"]));
    expect(html).toContain("<td>in turn with actor</td>");
    expect(html).toContain("81.0 %");
    expect(html).not.toMatch(/https?:\/\/|src=|@import/);
    expect(html).not.toMatch(/NaN|undefined|Infinity/);
    expect(html).not.toContain("abc123");
    const script = /<script>("use strict"[\s\S]*?)<\/script>/.exec(html)![1]!;
    expect(() => new Script(script)).not.toThrow();
  });

  it("has the data of its curves as they were measured", async () => {
    writeSyntheticFolder(folder, 30);
    const html = renderReport(await readRun(folder));
    const [, json] = /aria-label="accuracy">[\s\S]*?<script type="application\/json">(.*?)<\/script>/.exec(html)!;
    const chart = JSON.parse(json!) as { xs: number[]; series: { values: number[] }[] };
    expect(chart.xs).toEqual([0, 10, 20, 30]);
    expect(chart.series[0]!.values[0]).toBe(0.33);
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

import { rmSync } from "node:fs";
import { TraceWriter, toChromeTrace, toHtmlTimeline, utilisation } from "./src/index.ts";
import { syntheticTrace } from "./test/synthetic-trace.ts";

rmSync("/tmp/obs", { recursive: true, force: true });
const b = syntheticTrace({ steps: 4 });
{
  using w = new TraceWriter("/tmp/obs/trace.jsonl");
  for (const x of b) w.append(x);
}
console.log(
  await toChromeTrace(["/tmp/obs/trace.jsonl"], "/tmp/obs/trace.json"),
  await toHtmlTimeline(["/tmp/obs/trace.jsonl"], "/tmp/obs/t.html", { title: "reasoning-grpo-0042" }),
);
console.log(utilisation(b));

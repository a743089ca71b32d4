// Puts the shipped workflows into the package, beside which they lie in a checkout; `remove` takes them out again.
import { cp, rm } from "node:fs/promises";

const templates = new URL("./templates/", import.meta.url);
await rm(templates, { recursive: true, force: true });
if (process.argv[2] !== "remove") {
  for (const name of ["bandit", "reasoning-grpo", "tool-agent", "embodied-ppo"]) {
    await cp(new URL(`../../workflows/${name}/`, import.meta.url), new URL(`${name}/`, templates), {
      recursive: true,
      filter: (path) => !path.endsWith(".test.ts"),
    });
  }
}

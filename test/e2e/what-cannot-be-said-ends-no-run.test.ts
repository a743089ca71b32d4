import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { command, projectRoot } from "../support/project.ts";
import { temporaryRuns } from "../support/treadle.ts";

const full = "/dev/full"; // a disk that is

test.skipIf(!existsSync(full))(
  "a run whose output can be written nowhere ends as any other",
  async () => {
    await using runs = await temporaryRuns();
    const words = [process.execPath, command, "run", "workflows/bandit", "--plain", "--runs", runs.path];
    const script = `"$@" --set steps=3 > ${full} 2> ${full}`;
    const ended = promisify(execFile)("sh", ["-c", script, "sh", ...words], { cwd: projectRoot, timeout: 120_000 });
    await expect(ended).resolves.toMatchObject({ stdout: "" });
  },
  150_000,
);

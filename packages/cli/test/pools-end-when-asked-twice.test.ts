import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { startNatsServer } from "@treadle/transport/testing";
import { expect, test } from "vitest";

const treadle = fileURLToPath(new URL("../bin/treadle.js", import.meta.url));

test("a second signal ends 'pool start' whose server hangs", async () => {
  await using server = await startNatsServer();
  const runs = mkdtempSync(join(tmpdir(), "treadle-pool-"));
  const child = spawn(process.execPath, [treadle, "pool", "start", "p", "--nats", server.url, "--runs", runs], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const ended = new Promise((resolve) => child.once("close", resolve));
  try {
    await new Promise<void>((resolve) => {
      child.stdout.on("data", (bytes: Buffer) => {
        if (String(bytes).includes("is ready for runs")) resolve();
      });
    });
    server.signal("SIGSTOP");
    child.kill("SIGTERM");
    await new Promise((resolve) => setTimeout(resolve, 200)); // signals that come together are one
    child.kill("SIGTERM");
    const late = new Promise((resolve) => setTimeout(resolve, 8000, "still there"));
    expect(await Promise.race([ended, late])).toBe(130);
  } finally {
    child.kill("SIGKILL");
    server.signal("SIGCONT");
    rmSync(runs, { recursive: true, force: true });
  }
});

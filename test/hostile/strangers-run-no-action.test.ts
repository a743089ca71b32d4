/** Another user of the machine at `treadle actions serve` without tokens, as it is started without a configuration but for its port. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { callAsUser } from "../../packages/actions/test/support/call-as-user.ts";
import { startService } from "../../packages/actions/test/support/service-process.ts";

const nobody = 65_534;
const canBeOthers = process.platform === "linux" && process.getuid?.() === 0;

test("another user has no action run by it, and its own user has", async ({ skip }) => {
  skip(!canBeOthers, "another user is needed: run as root on Linux");
  const folder = mkdtempSync(join(tmpdir(), "treadle-stranger-"));
  const config = join(folder, "config.yaml");
  writeFileSync(config, "listen: 127.0.0.1:0\ndrivers: [process]\nresources: { cpu: { type: cpu, numa: [[0]] } }\n");
  const service = await startService(config);
  try {
    for (const method of ["OpenTrajectory", "GetStatistics", "Submit", "Acquire"])
      expect(await callAsUser(nobody, service.address, { method })).toMatch(/^7 user '65534' may not call/);
    expect(await callAsUser(0, service.address)).toBe("0 OK");
  } finally {
    await service.kill();
    rmSync(folder, { recursive: true });
  }
});

/** Another user of the machine at `treadle actions serve` and `treadle actions host` without tokens, as they are started. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { callAsUser } from "../../packages/actions/test/support/call-as-user.ts";
import { startHost, startService } from "../../packages/actions/test/support/service-process.ts";

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

test("another user has no sandbox opened by a host, and learns nothing of it", async ({ skip }) => {
  skip(!canBeOthers, "another user is needed: run as root on Linux");
  const folder = mkdtempSync(join(tmpdir(), "treadle-stranger-"));
  const config = join(folder, "host.yaml");
  writeFileSync(config, "listen: 127.0.0.1:0\ndrivers: [process]\n");
  const host = await startHost(config);
  try {
    const service = "treadle.hosts.v1.SandboxHost";
    for (const method of ["Attach", "OpenSandbox", "Exec", "WriteFile", "ReadFile", "Signal", "CloseSandbox"])
      expect(await callAsUser(nobody, host.address, { service, method })).toMatch(/^7 user '65534' may not call/);
    expect(await callAsUser(0, host.address, { service, method: "CloseSandbox" })).toMatch(/^3 attachment: /);
  } finally {
    await host.kill();
    rmSync(folder, { recursive: true });
  }
});

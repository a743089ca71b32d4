/** What only Linux has, taken away: shared memory, control groups, facts of the kernel. And Windows, which is refused. */
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { checkPlatform, type RunEvent } from "@treadle/contracts";
import { describe, expect, test } from "vitest";
import { pidOf } from "../support/cluster.ts";
import { expectCleanEnd, expectWholeLedger, ledgerWorkflow, pidsOf } from "../support/ledger.ts";
import { MountNamespace } from "../support/mount-namespace.ts";
import { loaderFlags, projectRoot, runner } from "../support/project.ts";

/** An empty /sys, no facts of the kernel, and a /dev with the devices that any Unix has. Node itself needs the rest of /proc. */
const hideLinux = `
  mkdir -p /mnt/dev && mount -t tmpfs none /mnt/dev
  for name in null zero random urandom tty; do touch "/mnt/dev/$name" && mount --bind "/dev/$name" "/mnt/dev/$name"; done
  mount --rbind /mnt/dev /dev
  mount -t tmpfs none /sys
  mount -t tmpfs none /proc/sys`;

test("without shared memory and control groups a run trains every item once, though a worker dies", async ({
  skip,
}) => {
  const namespace = await MountNamespace.open();
  if (typeof namespace === "string") return skip(namespace);
  const root = await mkdtemp(join(tmpdir(), "treadle-elsewhere-"));
  try {
    await namespace.shell(hideLinux);
    for (const path of ["/dev/shm", "/proc/sys/kernel", "/sys/fs"])
      expect(existsSync(namespace.outside(path))).toBe(false);
    const node = [process.execPath, ...loaderFlags, runner, projectRoot, root, ledgerWorkflow, "new"];
    // Of large items, which would lie in shared memory.
    const overrides = ["steps=4", "ranks=1", "payload=300000"];
    const [program, ...args] = namespace.command(projectRoot, [...node, ...overrides]);
    const child = spawn(program, args, { stdio: ["ignore", "pipe", "inherit"] });
    const events: RunEvent[] = [];
    let killed = 0;
    createInterface({ input: child.stdout }).on("line", (line) => {
      const event = JSON.parse(line) as RunEvent;
      events.push(event);
      if (event.type !== "step-started" || event.step !== 2) return;
      killed = pidOf(events, "trainer/0");
      process.kill(killed, "SIGKILL");
    });
    const code = await new Promise<number | null>((resolve) => child.once("close", resolve));
    expect(events.filter(({ type }) => (type as string) === "threw")).toEqual([]);
    expect(code).toBe(0);
    expect(killed).toBeGreaterThan(0);
    expect(events.some(({ type }) => type === "worker-restarted")).toBe(true);
    const finished = events.find((event) => event.type === "run-finished");
    const runId = finished?.type === "run-finished" ? finished.summary.runId : "";
    await expectWholeLedger(join(root, runId), 4, 12);
    await expectCleanEnd(runId, join(root, runId), pidsOf(events));
  } finally {
    await namespace.close();
    await rm(root, { recursive: true, force: true });
  }
});

describe("Windows", () => {
  test("is refused with the reason and the way around; other systems are not", () => {
    for (const platform of ["linux", "darwin", "freebsd"])
      expect(() => checkPlatform({ platform, versions: {} })).not.toThrow();
    expect(() => checkPlatform({ platform: "win32", versions: {} })).toThrow(
      expect.objectContaining({ code: "platform.unsupported", message: expect.stringMatching(/group.*owner.*WSL 2/) }),
    );
  });

  test("is refused by the command line as a misuse, before it does anything", async () => {
    const asWindows = `data:text/javascript,Object.defineProperty(process,"platform",{value:"win32"})`;
    // Once the loader of sources has its binary, which it chooses by the platform.
    const flags = [...loaderFlags, "--import", asWindows];
    const entry = join(projectRoot, loaderFlags.length > 0 ? "packages/cli/src/main.ts" : "packages/cli/dist/main.js");
    const child = spawn(process.execPath, [...flags, entry, "doctor"], { cwd: projectRoot });
    let said = "";
    child.stderr.on("data", (bytes) => {
      said += bytes;
    });
    const code = await new Promise<number | null>((resolve) => child.once("close", resolve));
    expect(said).toMatch(/does not run on 'win32'.*WSL 2/s);
    expect(code).toBe(2);
  });
});

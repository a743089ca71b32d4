import { execFileSync, spawnSync } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { connectActions, outputOf } from "../../packages/actions/test/support/client.ts";
import { projectRoot } from "../support/project.ts";

const unit = "treadle-actions.service";
const group = `/sys/fs/cgroup/system.slice/${unit}`;
const control = (...words: string[]): string =>
  execFileSync("systemctl", [...words, "--no-pager"], { encoding: "utf8" });

test("the shipped unit serves actions in sandboxes of control groups, and leaves nothing when it is stopped", async () => {
  // ProtectHome hides where they may be.
  const bwrap = execFileSync("sh", ["-c", "command -v bwrap"], { encoding: "utf8" }).trim();
  copyFileSync(bwrap, "/usr/local/bin/bwrap");
  copyFileSync(process.execPath, "/usr/local/bin/node-of-tests");
  rmSync("/usr/local/bin/node", { force: true });
  symlinkSync("node-of-tests", "/usr/local/bin/node");
  symlinkSync(projectRoot, "/opt/treadle");
  mkdirSync("/etc/treadle", { recursive: true });
  writeFileSync("/etc/treadle/actions.yaml", "listen: 127.0.0.1:50061\ndrivers: [cgroup]\n");
  copyFileSync(join(projectRoot, "deploy/systemd", unit), join("/run/systemd/system", unit));
  control("daemon-reload");
  control("start", unit);
  const { call, submit, close } = connectActions("127.0.0.1:50061");
  const trajectory = await openWithin(180, () => call("OpenTrajectory", { memory_mib: 64 }));
  const run = submit({ trajectory, command: ["sh", "-c", "cat /proc/self/cgroup; taskset -p $$"] });
  expect(await run.ended).toBeUndefined();
  expect(outputOf(run)).toMatch(/^0::\/system\.slice\/treadle-actions\.service\/treadle-\d+-\d+-\w+\//);
  const hungry = submit({ trajectory, command: ["python3", "-c", "x = 'x' * 10**9"] });
  expect(await hungry.ended).toBeUndefined();
  expect(hungry.events.find(({ finished }) => finished !== undefined)?.finished?.["status"]).toBe("out-of-memory");
  expect(control("is-active", unit).trim()).toBe("active");
  expect(readFileSync(`${group}/cgroup.procs`, "utf8")).toBe("");
  close();
  control("stop", unit);
  expect(control("show", "-p", "Result", unit).trim()).toBe("Result=success");
  expect(existsSync(group)).toBe(false);
});

/** The service takes its time to start, more so in an emulated machine. */
async function openWithin(seconds: number, open: () => Promise<Record<string, unknown>>): Promise<unknown> {
  for (let tries = 1; ; tries++) {
    try {
      return (await open())["trajectory"];
    } catch (error) {
      const { stdout } = spawnSync("systemctl", ["status", "--lines=50", "--no-pager", unit], { encoding: "utf8" });
      if (tries === seconds || stdout.includes("Active: failed")) throw new Error(stdout, { cause: error });
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

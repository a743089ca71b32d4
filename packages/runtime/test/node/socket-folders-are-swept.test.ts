import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readdir, rename, rm, symlink, utimes, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { localControlPlanes } from "@treadle/transport";
import { expect, test } from "vitest";
import { until } from "../../../../test/support/cluster.ts";
import { startNodeService } from "../../../../test/support/node-service.ts";
import { ownName } from "../../src/node/processes.ts";
import { checkSocketRoot, removeDeadSocketFolders, runnerSocket } from "../../src/node/socket-folder.ts";

test("S4: folders of dead runners go, also those that were not removed whole; those of living ones, those that are being opened and others' stay", async () => {
  const root = await mkdtemp(join(tmpdir(), "sweep-"));
  const server = createServer();
  try {
    for (const name of [
      "treadle-sockets-alive",
      "treadle-sockets-dead",
      "treadle-sockets-stale",
      "treadle-sockets-half-removed",
      "treadle-opening-young",
      "treadle-opening-old",
      "other",
    ])
      await mkdir(join(root, name));
    await writeFile(join(root, "treadle-sockets-stale", runnerSocket), ""); // nobody can listen on this
    await new Promise<void>((resolve) => server.listen(join(root, "treadle-sockets-alive", runnerSocket), resolve));
    const old = new Date(Date.now() - 3_600_000);
    for (const name of ["sockets-alive", "sockets-dead", "sockets-stale", "opening-old"])
      await utimes(join(root, `treadle-${name}`), old, old);
    expect(await removeDeadSocketFolders(root)).toBe(false);
    expect((await readdir(root)).toSorted()).toEqual(["other", "treadle-opening-young", "treadle-sockets-alive"]);
    expect(await removeDeadSocketFolders(join(root, "does not exist"))).toBe(false);
  } finally {
    await new Promise((resolve) => server.close(resolve));
    await rm(root, { recursive: true });
  }
});

test("S4: a folder of a process that has ended goes at once, unless somebody listens there; that of one that lives, or is elsewhere, stays", async ({
  skip,
}) => {
  if (ownName === undefined) return skip("processes are found in /proc");
  const root = await mkdtemp(join(tmpdir(), "sweep-"));
  const [boot, ...rest] = ownName.split("/");
  const begun = Number(rest.pop());
  const earlier = [boot, ...rest, begun - 1].join("/"); // its number was used again
  const machineMs = Number(process.hrtime.bigint() / 1_000_000n);
  const server = createServer();
  try {
    for (const [name, maker, madeMs] of [
      ["ended", earlier, machineMs],
      ["living", ownName, machineMs - 3_600_000],
      ["elsewhere", ["another", ...rest, begun - 1].join("/"), machineMs],
      ["served", earlier, machineMs],
    ] as const) {
      const folder = join(root, `treadle-sockets-${name}`);
      await mkdir(folder);
      await writeFile(join(folder, "segments"), `none\n${madeMs}\n${maker}`);
    }
    await new Promise<void>((resolve) => server.listen(join(root, "treadle-sockets-served", runnerSocket), resolve));
    await removeDeadSocketFolders(root);
    const left = ["elsewhere", "living", "served"].map((name) => `treadle-sockets-${name}`);
    expect((await readdir(root)).toSorted()).toEqual(left);
  } finally {
    await new Promise((resolve) => server.close(resolve));
    await rm(root, { recursive: true });
  }
});

test("S4: shared memory of a run that is resumed while the folder of its dead runner is removed stays", async ({
  skip,
}) => {
  if (!existsSync("/dev/shm")) return skip("shared memory is found in /dev/shm");
  const root = await mkdtemp(join(tmpdir(), "sweep-"));
  const names = `treadle-sweep-${process.pid}-`;
  const segment = `/dev/shm/${names}1`;
  const madeMs = Number(process.hrtime.bigint() / 1_000_000n);
  const make = async (folder: string, atMs: number) => {
    await mkdir(join(root, "treadle-opening-it"));
    await writeFile(join(root, "treadle-opening-it", "segments"), `${names}\n${atMs}`);
    await rename(join(root, "treadle-opening-it"), join(root, folder));
  };
  try {
    await writeFile(join(root, "treadle-sockets-notes"), "no folder, and so nobody's");
    await symlink(root, join(root, "treadle-sockets-link"));
    await make("treadle-sockets-dead", madeMs - 61_000);
    const removed = removeDeadSocketFolders(root);
    await make("treadle-sockets-resumed", madeMs);
    await writeFile(segment, "");
    await removed;
    expect(await readdir(root)).toContain("treadle-sockets-resumed");
    expect(existsSync(segment)).toBe(true);
    await utimes(join(root, "treadle-sockets-resumed"), 0, 0);
    await writeFile(join(root, "treadle-sockets-resumed", "segments"), `${names}\n${madeMs - 61_000}`);
    await removeDeadSocketFolders(root);
    expect(existsSync(segment)).toBe(false);
    expect((await readdir(root)).toSorted()).toEqual(["treadle-sockets-link", "treadle-sockets-notes"]);
  } finally {
    await rm(segment, { force: true });
    await rm(root, { recursive: true });
  }
});

test("S4: how old a folder is does not follow from the clock", async () => {
  const root = await mkdtemp(join(tmpdir(), "sweep-"));
  const machineMs = Number(process.hrtime.bigint() / 1_000_000n);
  const old = new Date(Date.now() - 3_600_000);
  try {
    for (const [name, madeMs] of [
      ["young", machineMs - 1000],
      ["old", machineMs - 61_000],
      ["before-a-restart", machineMs + 3_600_000],
    ] as const) {
      const folder = join(root, `treadle-sockets-${name}`);
      await mkdir(folder);
      await writeFile(join(folder, "segments"), `none\n${madeMs}`);
      if (name === "young") await utimes(folder, old, old);
    }
    await removeDeadSocketFolders(root);
    expect(await readdir(root)).toEqual(["treadle-sockets-young"]);
  } finally {
    await rm(root, { recursive: true });
  }
});

test("S4: a dead runner's shared memory goes with its folder, unless the run lives on elsewhere", async () => {
  const root = await mkdtemp(join(tmpdir(), "sweep-"));
  const run = `treadle-sweep-${process.pid}`;
  const segments = ["gone", "resumed"].map((name) => `${run}-${name}-kept-a.0.0-1`);
  const old = new Date(Date.now() - 3_600_000);
  try {
    for (const segment of segments) await writeFile(join("/dev/shm", segment), "");
    for (const [name, isOld] of [
      ["gone", true],
      ["resumed", true],
      ["resumed", false],
    ] as const) {
      const folder = join(root, `treadle-sockets-${name}-${isOld ? "old" : "young"}`);
      await mkdir(folder);
      await writeFile(join(folder, "segments"), `${run}-${name}-`);
      if (isOld) await utimes(folder, old, old);
    }
    await removeDeadSocketFolders(root);
    expect(await readdir(root)).toEqual(["treadle-sockets-resumed-young"]);
    expect((await readdir("/dev/shm")).filter((name) => name.startsWith(run))).toEqual([segments[1]]);
  } finally {
    for (const segment of segments) await rm(join("/dev/shm", segment), { force: true });
    await rm(root, { recursive: true });
  }
});

test("S4: another user's link to a folder that this user owns and others write to names nothing that is swept", async () => {
  const root = await mkdtemp(join(tmpdir(), "sweep-"));
  const open = await mkdtemp(join(tmpdir(), "others-write-here-"));
  const segment = `treadle-linked-${process.pid}-live-kept-a.0.0-1`;
  try {
    await writeFile(join("/dev/shm", segment), "");
    await writeFile(join(open, "segments"), `treadle-linked-${process.pid}-\n0`);
    await symlink(open, join(root, "treadle-sockets-link"));
    await removeDeadSocketFolders(root);
    expect(await readdir("/dev/shm")).toContain(segment);
    expect(await readdir(open)).toEqual(["segments"]);
  } finally {
    await rm(join("/dev/shm", segment), { force: true });
    for (const folder of [root, open]) await rm(folder, { recursive: true, force: true });
  }
});

test("S4: what a folder of this user's has in place of a file holds nobody up, and names nobody else's shared memory", async ({
  skip,
}) => {
  if (!existsSync("/dev/shm")) return skip("shared memory is found in /dev/shm");
  const root = await mkdtemp(join(tmpdir(), "sweep-"));
  const segment = `/dev/shm/treadle-others-${process.pid}-1`;
  try {
    await writeFile(segment, "");
    for (const name of ["pipe", "everybody"]) await mkdir(join(root, `treadle-sockets-${name}`));
    execFileSync("mkfifo", [join(root, "treadle-sockets-pipe", "segments")]);
    await writeFile(join(root, "treadle-sockets-everybody", "segments"), "treadle-\n0");
    await removeDeadSocketFolders(root);
    expect(existsSync(segment)).toBe(true);
    expect(await readdir(root)).toEqual(["treadle-sockets-pipe"]); // as young as one that is being made
  } finally {
    await rm(segment, { force: true });
    await rm(root, { recursive: true });
  }
});

test("S4: an agent without a run sweeps, too", async () => {
  const planes = localControlPlanes();
  const left = join(tmpdir(), `treadle-sockets-left-${process.pid}`);
  await mkdir(left);
  const old = new Date(Date.now() - 3_600_000);
  await utimes(left, old, old);
  const project = await mkdtemp(join(tmpdir(), "sweep-"));
  const service = await startNodeService(planes.connect(), project, 60_000);
  try {
    await until(() => !existsSync(left), "the folder to go");
  } finally {
    await service.close("the test is over");
    await Promise.all([left, project].map((folder) => rm(folder, { recursive: true, force: true })));
  }
});

test("a folder for temporary files in which no socket can be is told before anything is started", () => {
  expect(() => checkSocketRoot("/tmp")).not.toThrow();
  expect(() => checkSocketRoot("/var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T")).not.toThrow(); // macOS
  const long = `/scratch/${"x".repeat(70)}`;
  expect(() => checkSocketRoot(long)).toThrow(`sockets below '${long}' would have paths`);
});

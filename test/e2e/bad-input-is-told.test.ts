/** What a person gives or finds by mistake: taken ports, missing and half-written files, other kinds of modules. */
import { mkdirSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { expect, test } from "vitest";
import { type Finished, startTreadle, temporaryRuns, treadle } from "../support/treadle.ts";

const flat = ({ stderr }: Finished): string => stderr.replace(/\s+/g, " ");

test("a taken port and a missing file are told in Treadle's words, with the remedy", async () => {
  const holder = createServer();
  const port = await new Promise<number>((resolve) =>
    holder.listen(0, "127.0.0.1", () => resolve((holder.address() as { port: number }).port)),
  );
  await using runs = await temporaryRuns();
  const taken = await treadle(["dashboard", "--runs", runs.path, "--port", String(port)]);
  holder.close();
  expect(taken.code).toBe(2);
  expect(taken.stderr).toMatch(/^✗ the dashboard cannot listen at/);
  expect(flat(taken)).toMatch(/remedy give another port with --port, or 0 for a free one/);

  const missing = await treadle(["run", "workflows/bandit", "--config", "nofile.yaml", "--runs", runs.path]);
  expect(missing.code).toBe(2);
  expect(missing.stderr).toMatch(/^✗ configuration file 'nofile\.yaml' cannot be read/);
  expect(flat(missing)).toMatch(/because ENOENT.*remedy give an existing file/);
});

test("a half-written run folder hides no other run, and each command names the file and what to do", async () => {
  await using runs = await temporaryRuns();
  const folders = { torn: "20260101-000000-a-0001", empty: "20260101-000000-a-0002", silent: "20260101-000000-a-0003" };
  for (const folder of Object.values(folders)) mkdirSync(join(runs.path, folder, "logs"), { recursive: true });
  const write = (runId: string, file: string, text: string) => writeFileSync(join(runs.path, runId, file), text);
  write(folders.torn, "config.json", '{"workflow": "workflows/ban');
  write(folders.torn, "summary.json", '{"runId": "20');
  write(folders.torn, "trace.jsonl", '{"worker":"a/0","reco');
  write(folders.silent, "config.json", '{"workflow": "workflows/bandit", "config": {}}');

  const listed = await treadle(["runs", "--runs", runs.path]);
  expect(listed.code).toBe(0);
  expect(listed.stdout).toContain(`${folders.torn}  its summary.json is not whole; 'treadle resume`);
  expect(listed.stdout).toContain(`${folders.empty}  has no config.json`);
  expect(listed.stdout).toContain(`${folders.silent}  unfinished; go on with 'treadle resume`);
  expect((await treadle(["runs", "--runs", runs.path, "--json"])).code).toBe(0);

  for (const runId of [folders.torn, folders.empty]) {
    const resumed = await treadle(["resume", runId, "--runs", runs.path, "--plain"]);
    expect(resumed.code).toBe(2);
    expect(flat(resumed)).toContain(`${runId}/config.json' is missing or not whole`);
    expect(flat(resumed)).toMatch(/remedy start it again with 'treadle run'/);
  }

  const torn = await treadle(["trace", folders.torn, "--runs", runs.path]);
  expect(torn.code).toBe(2);
  expect(flat(torn)).toContain(`${folders.torn}/trace.jsonl' holds no whole line`);
  expect(flat(torn)).toMatch(/remedy run it again with trace: true/);
  const none = await treadle(["trace", folders.silent, "--runs", runs.path]);
  expect(flat(none)).toMatch(/^✗ run '\S+' has no trace .*\(run\.incomplete\).*remedy run it with trace: true/);

  const logs = await treadle(["logs", "--run", folders.silent, "--runs", runs.path]);
  expect(logs.code).toBe(2);
  expect(flat(logs)).toMatch(/^✗ no worker of run '\S+' has printed anything .*remedy add -f to wait/);
  expect(logs.stderr).not.toContain("no run of that id");
});

test("status recommends no resume of what cannot be resumed", async () => {
  await using runs = await temporaryRuns();
  mkdirSync(join(runs.path, "20260101-000000-a-0001"));
  const { stdout } = await treadle(["status", "--runs", runs.path]);
  expect(stdout).toContain("its config.json is missing or not whole");
  expect(stdout).not.toContain("resume");
});

test("a JavaScript workflow in a CommonJS project, a missing package and a missing project have remedies", async () => {
  await using folders = await temporaryRuns();
  const write = (name: string, manifest: object | undefined) => {
    const folder = join(folders.path, name);
    mkdirSync(folder);
    writeFileSync(
      join(folder, "run.js"),
      'import { workflow } from "treadle";\nexport default workflow({}, async () => {});\n',
    );
    if (manifest !== undefined) writeFileSync(join(folder, "package.json"), JSON.stringify(manifest));
    return folder;
  };
  const commonJs = write("common-js", { type: "commonjs" });
  const uninstalled = write("uninstalled", { type: "module" });
  const bare = write("bare", undefined);
  for (const [folder, remedy] of [
    [commonJs, `remedy set "type": "module" in '${commonJs}/package.json', or name it 'run.ts'`],
    [uninstalled, `remedy run 'npm install treadle' in '${uninstalled}'`],
    [bare, `run 'npm install treadle' in '${bare}', or let 'treadle init <folder>' write a project`],
  ] as const) {
    const told = await startTreadle(["validate", "."], "", folder).finished;
    expect(told.code).toBe(2);
    expect(flat(told)).toContain(remedy);
  }
});

/** A service whose commands run on hosts: processes of their own, as on other machines, which are killed, stopped and come back. */
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { connectActions, outputOf } from "./support/client.ts";
import { eventually, processesWith } from "./support/processes.ts";
import { startHost, startService } from "./support/service-process.ts";

function folderOf(files: Record<string, string>): string {
  const folder = mkdtempSync(join(tmpdir(), "treadle-hosts-"));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text);
  return folder;
}

const host = async (config: string) => {
  const started = await startHost(join(folderOf({ "host.yaml": config }), "host.yaml"));
  onTestFinished(started.kill);
  return started;
};
const minimal = (more = "") => `listen: 127.0.0.1:0\ndrivers: [process]\nnuma: [[0]]\n${more}`;

async function serviceOf(hosts: Record<string, string>, files: Record<string, string> = {}, more = "") {
  const each = Object.entries(hosts).map(([name, rest]) => `      ${name}: { ${rest} }\n`);
  const config = `listen: 127.0.0.1:0\nresources:\n  cpu:\n    type: cpu\n    hostWaitSeconds: 3\n    hosts:\n${each.join("")}${more}`;
  const started = await startService(join(folderOf({ "config.yaml": config, ...files }), "config.yaml")).catch(
    unwrapped,
  );
  onTestFinished(started.kill);
  const client = connectActions(started.address);
  onTestFinished(client.close);
  const open = async (options: object = {}): Promise<string> =>
    (await client.call("OpenTrajectory", options))["trajectory"] as string;
  const run = async (trajectory: string, text: string, options: object = {}) => {
    const action = client.submit({ trajectory, command: ["sh", "-c", text], ...options });
    const error = await action.ended;
    if (error !== undefined) throw error;
    return outputOf(action).trim();
  };
  return { ...started, ...client, open, run };
}
/** An error is shown in lines of the terminal's width. */
const unwrapped = (error: Error): never => {
  throw new Error(error.message.replace(/\s+/g, " "));
};
type Service = Awaited<ReturnType<typeof serviceOf>>;

async function hostOf(service: Service, trajectory: string): Promise<string | undefined> {
  const action = service.submit({ trajectory, command: ["true"] });
  expect(await action.ended).toBeUndefined();
  return action.events.find(({ started }) => started !== undefined)?.started?.host;
}

test.skipIf(availableParallelism() < 2)(
  "trajectories are spread over hosts, stay where they are, and get cores of their host",
  async () => {
    const [a, b] = [await host(minimal()), await host(minimal().replace("[[0]]", "[[1]]"))];
    const service = await serviceOf({ a: `address: ${a.address}`, b: `address: ${b.address}` });
    expect(service.output()).toMatch(/on 'a', 'b': 'process', .*/);
    const trajectories = await Promise.all([1, 2, 3, 4].map(() => service.open()));
    const places = [];
    for (const trajectory of trajectories) places.push(await hostOf(service, trajectory));
    expect(places.toSorted()).toEqual(["a", "a", "b", "b"]);
    for (const [i, trajectory] of trajectories.entries()) {
      await service.call("WriteFile", { trajectory, path: "note", data: Buffer.from(`of ${i}`) });
      expect(await hostOf(service, trajectory)).toBe(places[i]);
      const cores = "sed -n 's/Cpus_allowed_list://p' /proc/self/status";
      const said = await service.run(trajectory, `cat note; ${cores}`);
      expect(said.replace(/\s+/g, " ")).toBe(`of ${i} ${places[i] === "a" ? 0 : 1}`);
    }
    // Each has one core: one action of each at a time.
    const busy = trajectories.map((trajectory) =>
      service.submit({ trajectory, command: ["sh", "-c", "mkdir ../busy || exit 9; sleep 0.3; rmdir ../busy"] }),
    );
    for (const action of busy) {
      expect(await action.ended).toBeUndefined();
      expect(action.events.at(-1)?.finished).toMatchObject({ status: "exited", exit_code: 0 });
    }
    const { resources } = (await service.call("GetStatistics", {})) as { resources: { cpu: { units: number } } };
    expect(resources.cpu.units).toBe(2);
    await expect(service.run(trajectories[0]!, "true", { cost: { cpu: { fixed: 2 } } })).rejects.toThrow(
      /'2' units of 'cpu' were asked for, one action can get 1/,
    );
  },
);

test("a file that comes before the first action goes where the actions will run", async () => {
  const [a, b] = [await host(minimal()), await host(minimal())];
  const service = await serviceOf({ a: `address: ${a.address}`, b: `address: ${b.address}` });
  for (let i = 0; i < 6; i++) {
    const trajectory = await service.open();
    await service.call("WriteFile", { trajectory, path: "early", data: Buffer.from("early") });
    expect(await service.run(trajectory, "cat early")).toBe("early");
  }
});

test("a host that is killed ends its trajectories with the cause, others go on, and it is used again when it is back", async () => {
  const [a, b] = [await host(minimal()), await host(minimal())];
  const service = await serviceOf({ a: `address: ${a.address}`, b: `address: ${b.address}` });
  const [one, two] = [await service.open(), await service.open()];
  const [onA, onB] = (await hostOf(service, one)) === "a" ? [one, two] : [two, one];
  expect([await hostOf(service, onA), await hostOf(service, onB)]).toEqual(["a", "b"]);
  const lasting = service.submit({ trajectory: onA, command: ["sh", "-c", "sleep 211.25"] });
  const other = service.submit({ trajectory: onB, command: ["sh", "-c", "sleep 2; echo lived"] });
  expect(await eventually(() => processesWith("211.25").length > 0)).toBe(true);
  await a.kill();
  expect(await lasting.ended).toMatchObject({
    code: 15, // DATA_LOSS
    details: expect.stringMatching(/lost its sandbox and its files: host 'a' was lost/),
  });
  expect(await eventually(() => processesWith("211.25").length === 0)).toBe(true);
  await expect(service.run(onA, "true")).rejects.toThrow(/lost its sandbox and its files/);
  expect(await other.ended).toBeUndefined();
  expect(outputOf(other)).toBe("lived\n");
  expect(await service.run(await service.open(), "echo on b")).toBe("on b");
  expect(service.output()).toMatch(/host 'a' was lost: .*; its trajectories end/);
  const again = await startHost(join(folderOf({ "h.yaml": minimal() }), "h.yaml"), "--listen", a.address);
  onTestFinished(again.kill);
  expect(await eventually(() => service.output().includes("host 'a' is there"))).toBe(true);
  expect(await hostOf(service, await service.open())).toBe("a"); // where nothing is reserved
});

test("a host that is ended ends its trajectories with the cause, too", async () => {
  const a = await host(minimal());
  const service = await serviceOf({ a: `address: ${a.address}` });
  const trajectory = await service.open();
  await service.run(trajectory, "echo kept > file");
  const lasting = service.submit({ trajectory, command: ["sh", "-c", "sleep 215.25"] });
  expect(await eventually(() => processesWith("215.25").length > 0)).toBe(true);
  a.child.kill("SIGTERM");
  expect(await lasting.ended).toMatchObject({
    code: 15, // DATA_LOSS
    details: expect.stringMatching(/lost its sandbox and its files: host 'a' was lost: this host ends/),
  });
  expect(await a.ended).toBe(0);
  expect(processesWith("215.25")).toEqual([]);
  service.child.kill("SIGTERM");
  expect(await service.ended).toBe(0);
  expect(service.output().match(/was lost/g)).toHaveLength(1); // its own end loses nobody
});

test("RH2 RH4 a service that is killed leaves nothing on its hosts, which serve the next one; two at once are refused", async () => {
  const a = await host(minimal());
  const first = await serviceOf({ a: `address: ${a.address}` });
  void first.submit({ trajectory: await first.open(), command: ["sh", "-c", "sleep 212.25"] });
  expect(await eventually(() => processesWith("212.25").length > 0)).toBe(true);
  await expect(serviceOf({ a: `address: ${a.address}` })).rejects.toThrow(
    /none answers: 'a' at '.*': another action service is attached to it; end that one/,
  );
  await first.kill();
  expect(await eventually(() => processesWith("212.25").length === 0)).toBe(true);
  const second = await serviceOf({ a: `address: ${a.address}` });
  expect(await second.run(await second.open(), "echo served")).toBe("served");
  a.child.kill("SIGTERM");
  expect(await a.ended).toBe(0);
  expect(a.output()).toContain("nothing is left");
});

test("what must be restored goes to another host; what began from a snapshot of a lost host is lost, with the cause", async () => {
  const [a, b] = [await host(minimal()), await host(minimal())];
  const service = await serviceOf({ a: `address: ${a.address}`, b: `address: ${b.address}` });
  const all = [];
  for (let i = 0; i < 4; i++)
    all.push(await service.open({ restorable: true, prepare: [{ words: ["sh", "-c", "echo made > prepared"] }] }));
  const places = new Map<string, string | undefined>();
  for (const trajectory of all) places.set(trajectory, await hostOf(service, trajectory));
  const moved = all.find((trajectory) => places.get(trajectory) === "a")!;
  const { snapshot } = (await service.call("TakeSnapshot", { trajectory: moved })) as { snapshot: string };
  const forks = await Promise.all([1, 2, 3].map(() => service.open({ snapshot })));
  for (const fork of forks) expect(await hostOf(service, fork)).toBe("a");
  expect(await service.run(forks[0]!, "cat prepared")).toBe("made");
  const late = await service.open({ snapshot });
  await a.kill();
  expect(await eventually(() => service.output().includes("host 'a' was lost"))).toBe(true);
  await expect(service.open({ snapshot })).rejects.toThrow(
    /snapshot '.*' is gone: host 'a' was lost: .*; take another/,
  );
  await expect(service.run(late, "cat prepared")).rejects.toThrow(/the snapshot is gone: host 'a' was lost/);
  expect(await service.run(moved, "cat prepared")).toBe("made");
  expect(await hostOf(service, moved)).toBe("b");
});

test("a token is needed where it is asked for, and what is wrong is said", async () => {
  const files = { "host.token": "a-secret\n", "other.token": "another\n" };
  const folder = folderOf({ ...files, "host.yaml": minimal("tokenFile: host.token\n") });
  const a = await startHost(join(folder, "host.yaml"));
  onTestFinished(a.kill);
  for (const [rest, why] of [
    ["", /the host's token is needed; give the service the same/],
    [", tokenFile: other.token", /the host's token is needed/],
  ] as const)
    await expect(serviceOf({ a: `address: ${a.address}${rest}` }, files)).rejects.toThrow(why);
  const service = await serviceOf({ a: `address: ${a.address}, tokenFile: host.token` }, files);
  expect(await service.run(await service.open(), "echo known")).toBe("known");
  await service.kill();
  for (const token of ["s\u00e9cret", "two\nlines"])
    await expect(
      serviceOf({ a: `address: ${a.address}, tokenFile: odd.token` }, { "odd.token": token }),
    ).rejects.toThrow(/hosts.a.tokenFile: 'odd.token' has other than printable ASCII in one line/);
  await expect(serviceOf({ a: `address: ${a.address}`, b: `address: ${a.address}` })).rejects.toThrow(
    /resources.cpu.hosts: name each machine once: two have the same address/,
  );
  const alias = a.address.replace("127.0.0.1", "localhost");
  const twice = { a: `address: ${a.address}, tokenFile: host.token`, b: `address: ${alias}, tokenFile: host.token` };
  const named = await serviceOf(twice, files);
  expect(named.output()).toMatch(
    /host '[ab]' is away: .*it is this service's host '[ab]' already; name each machine once/,
  );
  expect(await named.run(await named.open(), "echo once")).toBe("once");
  await named.kill();
  await expect(serviceOf({ a: "address: 10.1.2.3:50071, tokenFile: host.token" }, files)).rejects.toThrow(
    /resources.cpu.hosts.a.authority: it is another machine: give its certificate's authority, or set insecure: true/,
  );
  await expect(serviceOf({ a: "address: 127.0.0.1:1" })).rejects.toThrow(
    /resources.cpu.hosts: none answers: 'a' at '127.0.0.1:1': .*ECONNREFUSED.* start 'treadle actions host' on each/,
  );
  await expect(
    startHost(join(folderOf({ "h.yaml": "listen: 0.0.0.0:0\n" }), "h.yaml")).catch(unwrapped),
  ).rejects.toThrow(/other machines reach this address: give tls and a tokenFile/);
});

const openssl = ((): boolean => {
  try {
    execFileSync("openssl", ["version"], { stdio: "ignore" });
    return true;
  } catch {
    return false;
  }
})();

test.skipIf(!openssl)(
  "TLS: a host shows its certificate, and a service believes its authority alone (needs openssl)",
  async () => {
    const files = { "host.token": "a-secret\n" };
    const folder = folderOf({
      ...files,
      "host.yaml": minimal("tokenFile: host.token\ntls: { certificate: a.crt, key: a.key }\n"),
    });
    const certificates: Record<string, string> = {};
    for (const name of ["a", "other"]) {
      const [key, certificate] = [join(folder, `${name}.key`), join(folder, `${name}.crt`)];
      const request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=host"];
      const its = ["-keyout", key, "-out", certificate, "-addext", "subjectAltName=IP:127.0.0.1"];
      execFileSync("openssl", [...request, ...its], { stdio: "ignore" });
      certificates[`${name}.crt`] = readFileSync(certificate, "utf8");
    }
    const a = await startHost(join(folder, "host.yaml"));
    onTestFinished(a.kill);
    const at = (authority: string) => `address: ${a.address}, tokenFile: host.token, authority: ${authority}`;
    const service = await serviceOf({ a: at("a.crt") }, { ...files, ...certificates });
    expect(await service.run(await service.open(), "echo encrypted")).toBe("encrypted");
    await service.kill();
    await expect(serviceOf({ a: at("other.crt") }, { ...files, ...certificates })).rejects.toThrow(
      /none answers: 'a' at .*certificate/,
    );
  },
);

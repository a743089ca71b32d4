/** What a service's configuration says of a sandbox's files and of its network, as trajectories find it: here and on hosts. */
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { cgroupDriverLacks, diskImagesLack } from "../src/index.ts";
import { ActionHostConfig, ActionServiceConfig, openActionHost, openActionService } from "../src/serve.ts";
import { connectActions, outputOf } from "./support/client.ts";

const missing = cgroupDriverLacks();
const mebibytes = "df -m /work | tail -1 | tr -s ' ' | cut -d' ' -f2";

/** A site on this machine's loopback, which no sandbox can name but as an entry of a list says. */
const site = createServer((request, response) => response.end(`${request.headers.host} ${request.url}`));
let port = 0;
beforeAll(async () => {
  await new Promise<void>((resolve) => site.listen(0, "127.0.0.1", () => resolve()));
  port = (site.address() as AddressInfo).port;
});
afterAll(() => void site.close());

async function serve(config: object) {
  const service = await openActionService(ActionServiceConfig.parse({ listen: "127.0.0.1:0", ...config }), ".");
  const client = connectActions(service.address);
  onTestFinished(async () => {
    client.close();
    await service.close();
  });
  const run = async (text: string, options: object = {}) => {
    const { trajectory } = await client.call("OpenTrajectory", options);
    const action = client.submit({ trajectory, command: ["sh", "-c", text] });
    const error = await action.ended;
    if (error !== undefined) throw error;
    return outputOf(action).trim();
  };
  return { ...service, run };
}

async function host(config: object): Promise<string> {
  const parsed = ActionHostConfig.parse({ listen: "127.0.0.1:0", numa: [[0]], ...config });
  const opened = await openActionHost(parsed, ".", () => {});
  onTestFinished(opened.close);
  return opened.address;
}
const onHost = (address: string) => ({ resources: { cpu: { type: "cpu", hosts: { a: { address } } } } });

/** Python's, which finds the proxy as most programs do. */
const get = (url: string): string => `python3 - ${url} 2>&1 <<'PYTHON'
import sys, urllib.error, urllib.request
try: print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())
except urllib.error.HTTPError as error: print(error.code, error.read().decode())
except Exception as error: print(type(error).__name__, error)
PYTHON`;
const direct = (to: number): string =>
  `python3 -c 'import socket; socket.create_connection(("127.0.0.1", ${to}), 5); print("reached")' 2>&1 | tail -1`;

describe.skipIf(missing !== undefined)(
  `on the driver cgroup${missing === undefined ? "" : ` (skipped: ${missing})`}`,
  () => {
    // Of a machine without loop devices there is nothing to test but that it says so, which the contract of drivers does.
    const lacks = missing ?? diskImagesLack();

    test.skipIf(lacks !== undefined)(
      "CG11 files have the usual limit, the configuration's, or what a trajectory states",
      async () => {
        const usual = await serve({});
        const size = async (service: typeof usual, options = {}) => Number(await service.run(mebibytes, options));
        expect(await size(usual)).toBeGreaterThan(9_900);
        expect(await size(usual)).toBeLessThanOrEqual(10_240);
        expect(await size(usual, { disk_bytes: 100 * 2 ** 20 })).toBeLessThanOrEqual(100);
        await expect(usual.run("true", { disk_bytes: 2 ** 37 })).rejects.toThrow(
          /disk_bytes: '137438953472' was asked for, a trajectory may have 68719476736; ask for less/,
        );
        const own = await serve({ limits: { trajectoryDiskMib: 32, maxTrajectoryDiskMib: 64 } });
        expect(await size(own)).toBeLessThanOrEqual(32);
        expect(await own.run("head -c 40m /dev/zero 2>&1 > f || echo refused")).toMatch(/No space.*\nrefused$/);
      },
    );

    test.skipIf(lacks !== undefined)("CG11 a host holds the limit of its service", async () => {
      const service = await serve({ ...onHost(await host({})), limits: { trajectoryDiskMib: 48 } });
      expect(Number(await service.run(mebibytes))).toBeLessThanOrEqual(48);
    });

    test("EPX1 a sandbox reaches what is on the list, by its programs' own way, and nothing else of the machine", async () => {
      const network = { proxy: [`127.0.0.1:${port}`, "nothing.invalid"] };
      const service = await serve({ network });
      const run = (text: string) => service.run(text, { network: true });
      expect(await run(get(`http://127.0.0.1:${port}/a?b=c`))).toContain("URLError"); // no_proxy: its own loopback
      const through = (url: string) => `export no_proxy= NO_PROXY=; ${get(url)}`;
      expect(await run(through(`http://127.0.0.1:${port}/a?b=c`))).toBe(`127.0.0.1:${port} /a?b=c`);
      expect(await run(through(`http://127.0.0.1:${port + 1}/`))).toMatch(/^403 .*127\.0\.0\.1/);
      expect(await run(through("http://other.invalid/"))).toMatch(/^403 .*other\.invalid/);
      expect(await run(through("http://nothing.invalid/"))).toMatch(/^502 .*nothing\.invalid/);
      expect(await run(direct(port))).toMatch(/Refused/);
      // Who does not ask for it has none.
      expect(await service.run('echo "$http_proxy"; cat /proc/net/tcp | wc -l')).toBe("1");
    });

    test("a service and its host each narrow what the other gives; without one of them there is none", async () => {
      const [here, there] = [`127.0.0.1:${port}`, "127.0.0.1:1"];
      const ask = `export no_proxy= NO_PROXY=; ${get(`http://${here}/`)}`;
      const said = async (ofService: unknown, ofHost: unknown) => {
        const address = await host({ network: ofHost });
        const service = await serve({ ...onHost(address), network: ofService });
        return service.run(ask, { network: true }).catch((error: Error) => error.message);
      };
      expect(await said({ proxy: [here] }, "host")).toBe(`${here} /`);
      expect(await said("host", { proxy: [here] })).toBe(`${here} /`);
      expect(await said({ proxy: [here] }, { proxy: [here, there] })).toBe(`${here} /`);
      expect(await said({ proxy: [here, there] }, { proxy: [there] })).toMatch(/^403 /);
      expect(await said("none", "host")).toMatch(
        /network: this server gives sandboxes none; leave it out, or set network/,
      );
      expect(await said("host", "none")).toMatch(/this host gives sandboxes no network; leave it out, or set network/);
    });
  },
);

test("what a driver cannot hold is refused at the start", async () => {
  const serving = (more: object) => serve({ drivers: ["process"], ...more });
  await expect(serving({ limits: { trajectoryDiskMib: 32 } })).rejects.toThrow(
    /'process' cannot hold a limit of '33554432' bytes on files: it isolates nothing; use 'cgroup' or 'docker'/,
  );
  await expect(serving({ network: { proxy: ["pypi.org"] } })).rejects.toThrow(/'process' holds no list of what may be/);
  expect(() => ActionServiceConfig.parse({ limits: { trajectoryDiskMib: 100_000 } })).toThrow(
    /is at most limits.maxTrajectoryDiskMib/,
  );
  expect(() => ActionServiceConfig.parse({ network: { proxy: [] } })).toThrow();
  // Nobody said anything of it.
  const service = await serving({});
  expect(await service.run("echo works")).toBe("works");
});

import { expect, test } from "vitest";
import { startCluster } from "../support/cluster.ts";
import { ProbeWorker } from "../support/workers/probe.ts";

test("workers of a group's nodes run under its interpreter, in its environment; a component's own counts for more", async () => {
  const test = await startCluster({
    cluster: {
      devices: 2,
      nodeGroups: { all: [0] },
      groups: {
        all: {
          env: { PROBE_FLAG: "the group's" },
          interpreter: { command: process.execPath, flags: ["--title=grouped"] },
        },
      },
    },
  });
  try {
    const one = { ranks: { fixed: 1 } };
    const probe = await test.cluster.launch(ProbeWorker, {}, one);
    const other = await test.cluster.launch(ProbeWorker, {}, { ...one, name: "other", env: { PROBE_FLAG: "mine" } });
    expect(await probe.whoAmI()).toMatchObject([{ flag: "the group's", title: "grouped" }]);
    expect(await other.whoAmI()).toMatchObject([{ flag: "mine", title: "grouped" }]);
  } finally {
    await test.close();
  }
});

test("an interpreter that a node lacks is named, and nothing is tried again", async () => {
  const test = await startCluster({
    cluster: { nodeGroups: { all: [0] }, groups: { all: { interpreter: { command: "/nonexistent/node" } } } },
  });
  try {
    await test.cluster.launch(ProbeWorker, {}, { ranks: { fixed: 1 } });
    await expect(test.cluster.start()).rejects.toMatchObject({
      code: "worker.load-failed",
      message: expect.stringContaining("'/nonexistent/node'"),
    });
  } finally {
    await test.close();
  }
});

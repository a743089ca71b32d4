import { type Link, TreadleError } from "@treadle/contracts";
import { expect, test } from "vitest";
import { dialRunner } from "../../src/worker/dial-runner.ts";

const link = { remote: "runner" } as Link;
const refused = (cause?: Error) => new TreadleError("link.refused", "closed during the handshake", { cause });
const nobody = Object.assign(new Error("connect ECONNREFUSED"), { code: "ECONNREFUSED" });

/** Fails as told, then answers; with how often it was asked. */
function endpoint(failures: readonly Error[]) {
  let times = 0;
  const connect = async () => {
    const failure = failures[times++];
    if (failure !== undefined) throw failure;
    return link;
  };
  return { endpoint: { connect }, times: () => times };
}

test("a runner whose door is crowded is dialled until it answers", async () => {
  const { endpoint: crowded, times } = endpoint([refused(), refused(new Error("reset")), refused()]);
  expect(await dialRunner(crowded, ["tcp:a:1"])).toBe(link);
  expect(times()).toBe(4);
});

test("where another relay may open, that nobody listens yet does not end it", async () => {
  const { endpoint: closed } = endpoint([refused(refused(nobody))]);
  expect(await dialRunner(closed, ["tcp:a:1", "relay:runner/runner"])).toBe(link);
});

test.each([
  ["nobody listens there", refused(nobody)],
  ["it is another run's", new TreadleError("link.unauthorized", "no token")],
])("it is given up at once when %s", async (_, failure) => {
  const { endpoint: none, times } = endpoint([failure]);
  await expect(dialRunner(none, ["tcp:a:1"])).rejects.toBe(failure);
  expect(times()).toBe(1);
});

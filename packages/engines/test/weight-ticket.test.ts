/** Which tickets an engine refuses before any file is opened. */
import { WeightTicket } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { weightsIdOf } from "../src/parameters.ts";
import { publicationOf, ticketMessage } from "../src/torch/torch-messages.ts";
import { weightFilesOf } from "../src/torch/weight-files.ts";
import { checkTicket, sealTicket } from "../src/weight-ticket.ts";

const tensor = fc.record({
  name: fc.stringMatching(/^[a-z.]{1,12}$/),
  shape: fc.array(fc.integer({ min: 0, max: 9 }), { maxLength: 3 }),
  dtype: fc.constantFrom("F32" as const, "BF16" as const),
  crc32: fc.integer({ min: 0, max: 0xffff_ffff }),
});
const place = { store: "/dev/shm/treadle-run-1-weights", nonce: "0123456789abcdef".repeat(2), folder: "version-3-1" };
const ticket = fc
  .record({
    policyVersion: fc.integer({ min: 1, max: 1e6 }),
    tensors: fc.uniqueArray(tensor, { minLength: 1, maxLength: 5, selector: ({ name }) => name }),
  })
  .map((given) => sealTicket({ ...place, ...given }));
const refused = expect.objectContaining({ code: "engine.weights-mismatch" });

test("W3 a ticket of the model's tensors is taken, and named by its version and its checksum", () => {
  fc.assert(
    fc.property(ticket, (given) => {
      expect(WeightTicket.parse(given)).toEqual(given);
      checkTicket(given.tensors, given);
      expect(weightsIdOf(given)).toBe(`${given.policyVersion}/${given.checksum}`);
    }),
  );
});

test("a ticket for weights on a device says which and by what handle, in both directions, under the id of a file of them", () => {
  const handle = Buffer.from(Array.from({ length: 64 }, (_, i) => 255 - i));
  fc.assert(
    fc.property(ticket, ({ policyVersion, tensors, ...file }) => {
      const said = { policy_version: policyVersion, ...place, tensors, adapter: null };
      const { ticket: found } = publicationOf({ ...said, device: { uuid: "gpu", handle } }) as { ticket: WeightTicket };
      expect(WeightTicket.parse(found)).toEqual(found);
      expect(found.device).toEqual({ uuid: "gpu", handle: handle.toString("hex") });
      expect(found.checksum).toBe(file.checksum);
      expect(ticketMessage(found)["device"]).toEqual({ uuid: "gpu", handle });
      const onDisk = publicationOf({ ...said, device: null }) as { ticket: WeightTicket };
      expect(onDisk.ticket).toEqual({ policyVersion, tensors, ...file });
      expect(ticketMessage(onDisk.ticket)).not.toHaveProperty("device");
    }),
  );
});

test("W3 whatever is changed in a ticket, it is refused: it is not what was sealed", () => {
  fc.assert(
    fc.property(ticket, fc.nat(), fc.constantFrom("version", "name", "dtype", "crc32"), (given, at, what) => {
      const index = at % given.tensors.length;
      const tensors = given.tensors.map((each, i) => {
        if (i !== index) return each;
        if (what === "name") return { ...each, name: `${each.name}x` };
        if (what === "dtype") return { ...each, dtype: each.dtype === "F32" ? ("BF16" as const) : ("F32" as const) };
        return what === "crc32" ? { ...each, crc32: (each.crc32 + 1) % 2 ** 32 } : each;
      });
      const changed = { ...given, tensors, policyVersion: given.policyVersion + (what === "version" ? 1 : 0) };
      expect(() => checkTicket(tensors, changed)).toThrow(refused);
      expect(sealTicket(changed).checksum).not.toBe(given.checksum);
    }),
  );
});

test("W3 tensors of another model are refused, and the first of them is named", () => {
  const tensors: WeightTicket["tensors"] = [
    { name: "first", shape: [2, 3], dtype: "F32", crc32: 1 },
    { name: "last", shape: [4], dtype: "F32", crc32: 2 },
  ];
  const given = sealTicket({ ...place, policyVersion: 2, tensors });
  const check = (layout: readonly { readonly name: string; readonly shape: readonly number[] }[]) => () =>
    checkTicket(layout, given);
  expect(check([tensors[0]!])).toThrow("'2' tensors where the model has '1'");
  expect(check([tensors[0]!, { name: "other", shape: [4] }])).toThrow(
    "tensor '1' is 'last' where the model has 'other'",
  );
  expect(check([{ name: "first", shape: [3, 2] }, tensors[1]!])).toThrow(
    "'first' has shape '2x3' where the model has '3x2'",
  );
});

test("a ticket from another process has bounded names, and paths that lead nowhere else", () => {
  const good = sealTicket({ ...place, policyVersion: 1, tensors: [{ name: "a", shape: [1], dtype: "F32", crc32: 0 }] });
  expect(WeightTicket.safeParse(good).success).toBe(true);
  for (const change of [
    { store: "relative" },
    { store: "/dev/shm/../etc" },
    { store: "/dev/shm/./treadle" },
    { store: "/dev/shm/" },
    { store: `/${"x".repeat(5000)}` },
    { folder: "../version-1-1" },
    { folder: "version-1-1/.." },
    { folder: "elsewhere" },
    { nonce: "short" },
    { checksum: "0" },
    { tensors: [] },
    { tensors: [{ name: "a", shape: [-1], dtype: "F32", crc32: 0 }] },
    { tensors: [{ name: "a", shape: [1], dtype: "F64", crc32: 0 }] },
    { tensors: [{ name: "a", shape: [1], dtype: "F32", crc32: 2 ** 32 }] },
    { device: { uuid: "", handle: "0".repeat(128) } },
    { device: { uuid: "gpu", handle: "0".repeat(126) } },
    { more: 1 },
  ])
    expect(WeightTicket.safeParse({ ...good, ...change }).success, JSON.stringify(change).slice(0, 80)).toBe(false);
});

test("files lie in the configured folder, else in the host's memory, and nowhere where bytes are asked for", () => {
  const hostFiles = {
    folder: "/dev/shm",
    ownPrefix: "treadle-run-7-",
    leftPrefix: "treadle-run-left-",
    runPrefix: "treadle-run-",
  };
  const memory = { folder: "/dev/shm", prefix: "treadle-run-" };
  const inMemory = weightFilesOf({ weightsBy: "ticket", weightsFolder: undefined }, hostFiles);
  expect(inMemory).toEqual({
    store: { root: "/dev/shm", name: expect.stringMatching(/^treadle-run-7-weights-[0-9a-f]{8}$/) },
    onDevice: false,
    roots: [memory],
  });
  expect(weightFilesOf({ weightsBy: "device", weightsFolder: "/shared" }, hostFiles)).toEqual({
    store: { root: "/shared", name: expect.stringMatching(/^treadle-run-7-weights-/) },
    onDevice: true,
    roots: [{ folder: "/shared", prefix: "treadle-run-" }, memory],
  });
  expect(weightFilesOf({ weightsBy: "bytes", weightsFolder: "/shared" }, hostFiles)).toBeUndefined();
});

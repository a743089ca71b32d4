import { execFileSync } from "node:child_process";
import {
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { ArchiveFilter, type ArchiveLimits } from "../src/archive/archive-filter.ts";
import { folder, type RawEntry, rawArchive, record } from "./support/tar.ts";

const limits: ArchiveLimits = { bytes: 2 ** 20, entries: 100 };

function filtered(
  archive: Buffer,
  { limit = limits, pieces = [archive.length] } = {},
): { out: Buffer; isFolder: boolean } {
  const filter = new ArchiveFilter(limit);
  const out: Buffer[] = [];
  let at = 0;
  for (let n = 0; at < archive.length; n++) {
    const size = pieces[n % pieces.length]!;
    out.push(...filter.push(archive.subarray(at, at + size)).map((piece) => Buffer.from(piece)));
    at += size;
  }
  out.push(...filter.end());
  return { out: Buffer.concat(out), isFolder: filter.isFolder };
}

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "treadle-filter-"));
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

const unpack = (archive: Buffer, place: string): void => {
  mkdirSync(place, { recursive: true });
  execFileSync("tar", ["-x", "-p", "-o", "-f", "-", "-C", place], { input: archive, stdio: ["pipe", "pipe", "pipe"] });
};

describe("what a tar makes of a folder", () => {
  const long = `${"long name/".repeat(12)}file`;
  const make = (place: string): void => {
    mkdirSync(join(place, "deep/er"), { recursive: true });
    mkdirSync(join(place, long, ".."), { recursive: true });
    writeFileSync(join(place, long), "far");
    writeFileSync(join(place, "deep/run.sh"), "echo ran", { mode: 0o755 });
    writeFileSync(join(place, "größe"), Buffer.alloc(1300, 7));
    writeFileSync(join(place, "empty"), "");
    symlinkSync("../run.sh", join(place, "deep/er/link"));
    symlinkSync("x".repeat(150), join(place, "dangling"));
    execFileSync("ln", ["deep/run.sh", "same"], { cwd: place });
  };

  test.each(["gnu", "pax", "ustar"])("comes out as it went in, in the format %s", (format) => {
    const place = join(root, "in");
    mkdirSync(place);
    make(place);
    if (format === "ustar") rmSync(join(place, "dangling")); // which it cannot say
    const archive = execFileSync("tar", [`--format=${format}`, "-C", place, "-c", "."], { maxBuffer: 2 ** 26 });
    const { out, isFolder } = filtered(archive);
    expect(isFolder).toBe(true);
    unpack(out, join(root, "out"));
    execFileSync("diff", ["-r", "--no-dereference", place, join(root, "out")]);
    expect(lstatSync(join(root, "out/deep/run.sh")).mode & 0o777).toBe(0o755);
    expect(lstatSync(join(root, "out/same")).ino).toBe(lstatSync(join(root, "out/deep/run.sh")).ino);
    // What came out goes in again, unchanged.
    expect(filtered(out).out.equals(out)).toBe(true);
  });

  test("is the same in whatever pieces it comes", () => {
    make(root);
    const archive = execFileSync("tar", ["--format=pax", "-C", root, "-c", "."], { maxBuffer: 2 ** 26 });
    const { out: whole } = filtered(archive);
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 1, max: 1500 }), { minLength: 1, maxLength: 8 }), (pieces) => {
        expect(filtered(archive, { pieces }).out.equals(whole)).toBe(true);
      }),
      { numRuns: 40 },
    );
  });
});

test("a file stands alone, whatever it is called", () => {
  const { out, isFolder } = filtered(rawArchive({ name: "./-rf", content: "text" }));
  expect(isFolder).toBe(false);
  unpack(out, root);
  expect(readdirSync(root)).toEqual(["file"]);
  expect(readFileSync(join(root, "file"), "utf8")).toBe("text");
});

describe("TA1 TA2 TA3 TA4 TA5 what is refused, and says so", () => {
  const evil = (...entries: RawEntry[]): Buffer => rawArchive(folder, ...entries);
  const pax = (key: string, value: string): RawEntry => ({ name: "PaxHeader", flag: "x", content: record(key, value) });
  const cases: readonly [string, Buffer, RegExp][] = [
    ["a name with ..", evil({ name: "a/../../b" }), /"a\/..\/..\/b" leads out of the folder/],
    ["an absolute name", evil({ name: "/etc/cron" }), /"\/etc\/cron" is absolute/],
    ["a name with .. by an extended header", evil(pax("path", "../b"), { name: "b" }), /"..\/b" leads out/],
    ["a long name with ..", evil({ name: "L", flag: "L", content: "x/../../b\0" }, { name: "b" }), /leads out/],
    ["a zero byte in a name", evil(pax("path", "a\0b"), { name: "b" }), /leads out/],
    [
      "an absolute link",
      evil({ name: "l", flag: "2", target: "/etc/passwd" }),
      /the link "l" leads to "\/etc\/passwd"/,
    ],
    ["a link that goes up too far", evil({ name: "a/l", flag: "2", target: "../../x" }), /the link "a\/l" leads to/],
    ["a link that goes up behind a link", evil({ name: "a/b/l", flag: "2", target: "c/../../x" }), /leads to/],
    ["a link to nothing", evil({ name: "l", flag: "2" }), /leads to ""/],
    [
      "a link by an extended header",
      evil(pax("linkpath", "/x"), { name: "l", flag: "2", target: "a" }),
      /leads to "\/x"/,
    ],
    ["a hard link to what is outside", evil({ name: "l", flag: "1", target: "/etc/passwd" }), /is absolute/],
    ["a hard link to what is not there", evil({ name: "l", flag: "1", target: "a" }), /leads to "a"/],
    [
      "a hard link to a link",
      evil({ name: "s", flag: "2", target: "a" }, { name: "l", flag: "1", target: "s" }),
      /leads/,
    ],
    [
      "what lies in a link",
      evil({ name: "s", flag: "2", target: "a" }, { name: "s/b" }),
      /"s\/b" lies in "s", which is a link/,
    ],
    ["what lies in a file", evil({ name: "s" }, { name: "s/b" }), /lies in "s", which is a file/],
    ["a link in place of a folder", evil({ name: "a/b" }, { name: "a", flag: "2", target: "b" }), /"a" comes again/],
    ["a file twice", evil({ name: "a" }, { name: "./a" }), /".\/a" comes again/],
    ["the folder twice", evil(folder), /".\/" comes again/],
    ["a character device", evil({ name: "d", flag: "3" }), /"d" is a device; leave it out/],
    ["a block device", evil({ name: "d", flag: "4" }), /a device/],
    ["a pipe", evil({ name: "p", flag: "6" }), /a pipe/],
    ["a sparse file", evil({ name: "s", flag: "S" }), /a sparse file/],
    ["a sparse file by an extended header", evil(pax("GNU.sparse.major", "1"), { name: "s" }), /sparse/],
    ["an unknown type", evil({ name: "v", flag: "V" }), /unknown type 'V'/],
    [
      "too many bytes",
      evil({ name: "a", content: "x".repeat(700_000) }, { name: "b", content: "x".repeat(700_000) }),
      /raise limits.transferMib/,
    ],
    ["a size beyond the limit, before its content", evil({ name: "a", size: "77777777777" }), /limits.transferMib/],
    ["a size that is no number", evil({ name: "a", size: "\x80\0\0\0\0\0\0\0\0\0\0\x01" }), /is no octal number/],
    ["a negative size by an extended header", evil(pax("size", "-1"), { name: "a" }), /'-1' bytes/],
    [
      "too many entries",
      evil(...Array.from({ length: 101 }, (_, i) => ({ name: `${i}` }))),
      /more than 100 entries; .*limits.transferEntries/,
    ],
    [
      "too many folders in names",
      evil(...Array.from({ length: 60 }, (_, i) => ({ name: `${i}/a` }))),
      /more than 100 entries/,
    ],
    ["too deep a folder", evil(pax("path", "a/".repeat(300)), { name: "a" }), /lies in '300' folders/],
    ["too long a name", evil(pax("path", "a".repeat(5000)), { name: "a" }), /a name has '5000' bytes/],
    [
      "too long a header",
      evil({ name: "x", flag: "x", size: "00077777777" }),
      /an extended header has '16777215' bytes/,
    ],
    [
      "headers without end",
      evil(...Array.from({ length: 500 }, () => pax("a", "b"))),
      /more extended headers than entries/,
    ],
    ["a damaged header", Buffer.from("x".repeat(2048)), /a header's checksum is wrong/],
    ["a damaged extended header", evil({ name: "x", flag: "x", content: "99 path=a\n" }, { name: "a" }), /is damaged/],
    ["an archive that is cut off", evil({ name: "a", content: "x".repeat(2000) }).subarray(0, 2000), /it was cut off/],
    ["a header without its entry", evil(pax("path", "a")), /it was cut off/],
    ["nothing", Buffer.alloc(0), /it is empty/],
    ["something after its end", Buffer.concat([evil(), Buffer.from("x")]), /something comes after its end/],
    ["a rest without end", Buffer.concat([evil(), Buffer.alloc(2 ** 21)]), /something comes after its end/],
    [
      "two files that stand alone",
      rawArchive({ name: "a" }, { name: "b" }),
      /"b" comes beside a file that stands alone/,
    ],
    ["a link that stands alone", rawArchive({ name: "a", flag: "2", target: "b" }), /it begins with "a"/],
    ["a folder with a name", rawArchive({ name: "a/", flag: "5" }), /it begins with "a\/"/],
  ];
  test.each(cases)("%s", (_, archive, why) => {
    for (const pieces of [[archive.length || 1], [7]])
      expect(() => filtered(archive, { pieces })).toThrow(
        expect.objectContaining({ code: "action.invalid", message: expect.stringMatching(why) }),
      );
  });
});

test("TA4 rights that a mode may give and owners do not come out", () => {
  const entries = [
    folder,
    { name: "s", mode: 0o4755 },
    { name: "t", mode: 0o2001 },
    { name: "d", flag: "5", mode: 0o1000 },
  ];
  unpack(filtered(rawArchive(...entries)).out, root);
  expect(["s", "t", "d"].map((name) => (lstatSync(join(root, name)).mode & 0o7777).toString(8))).toEqual([
    "755",
    "601",
    "700",
  ]);
});

/** Where a name leads, followed link by link; it stops being asked when it has left. */
function leaves(top: string, at: string[], parts: readonly string[], hops = 0): boolean {
  for (const [n, part] of parts.entries()) {
    if (part === "" || part === ".") continue;
    if (part === "..") {
      if (at.length === 0) return true;
      at.pop();
      continue;
    }
    const place = join(top, ...at, part);
    const link = (() => {
      try {
        return lstatSync(place).isSymbolicLink() ? readlinkSync(place) : undefined;
      } catch {
        return undefined;
      }
    })();
    if (link === undefined) at.push(part);
    else
      return (
        link.startsWith("/") || (hops < 40 && leaves(top, at, [...link.split("/"), ...parts.slice(n + 1)], hops + 1))
      );
  }
  return false;
}

test("TA2 TA3 whatever links an archive has, a tar that unpacks what came out leaves the folder by none", () => {
  const part = fc.constantFrom("a", "b", "..", ".", "l");
  const path = fc.array(part, { minLength: 1, maxLength: 4 }).map((parts) => parts.join("/"));
  const entry: fc.Arbitrary<RawEntry> = fc.oneof(
    path.map((name) => ({ name })),
    path.map((name) => ({ name, flag: "5", mode: 0o755 })),
    fc.record({ name: path, flag: fc.constantFrom("2", "2", "2", "1"), target: path }),
  );
  let numPassed = 0;
  fc.assert(
    fc.property(fc.array(entry, { minLength: 1, maxLength: 6 }), (entries) => {
      // Those that are refused go, one by one, so that more than single links are tried together.
      const kept: RawEntry[] = [folder];
      for (const one of entries) {
        try {
          filtered(rawArchive(...kept, one));
          kept.push(one);
        } catch {}
      }
      if (!kept.some(({ flag }) => flag === "2")) return;
      numPassed++;
      const top = join(root, String(numPassed), "in");
      unpack(filtered(rawArchive(...kept)).out, top);
      expect(readdirSync(join(top, ".."))).toEqual(["in"]);
      for (const { name } of kept) {
        expect(leaves(top, [], name.split("/")), JSON.stringify(kept)).toBe(false);
        for (const { name: more } of kept)
          expect(leaves(top, [], [...name.split("/"), ...more.split("/").filter((p) => p !== "..")])).toBe(false);
      }
    }),
    { numRuns: 300 },
  );
  expect(numPassed).toBeGreaterThan(30);
});

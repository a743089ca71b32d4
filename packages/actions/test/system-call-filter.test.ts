import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { behindFilter, systemCallFilter } from "../src/drivers/system-call-filter.ts";
import { securityOptionsOf, systemCallProfile } from "../src/drivers/system-call-profile.ts";
import {
  type Architecture,
  absentCalls,
  allowedCalls,
  architectures,
  conditions,
} from "../src/drivers/system-calls.ts";

const names = ["x64", "arm64"] as const;
const [allow, eperm, enosys] = ["allow", "EPERM", "ENOSYS"] as const;
type Answer = typeof allow | typeof eperm | typeof enosys;
type Call = { readonly audit: number; readonly number: number; readonly arguments: readonly bigint[] };

/** `struct seccomp_data` of a call. */
function dataOf(call: Call): Buffer {
  const data = Buffer.alloc(64);
  data.writeUInt32LE(call.number, 0);
  data.writeUInt32LE(call.audit, 4);
  call.arguments.forEach((value, n) => {
    data.writeBigUInt64LE(value, 16 + 8 * n);
  });
  return data;
}

/** What the kernel does with the few instructions that the filter has; throws on another, and on a jump out of it. */
function run(program: Buffer, data: Buffer): Answer {
  let accumulator = 0;
  for (let at = 0; at < program.length; at += 8) {
    const code = program.readUInt16LE(at);
    const operand = program.readUInt32LE(at + 4);
    if (code === 0x20) accumulator = data.readUInt32LE(operand);
    else if (code === 0x06) {
      const answers = new Map<number, Answer>([
        [0x7fff0000, allow],
        [0x00050001, eperm],
        [0x00050026, enosys],
      ]);
      return answers.get(operand)!;
    } else {
      const holds = new Map([
        [0x15, accumulator === operand],
        [0x35, accumulator >= operand],
        [0x45, (accumulator & operand) !== 0],
      ]).get(code);
      if (holds === undefined) throw new Error(`an instruction of code ${code}`);
      at += 8 * program.readUInt8(at + (holds ? 2 : 3));
    }
  }
  throw new Error("no answer");
}

/** The list, read without a compiler. */
function expected(architecture: Architecture, call: Call): Answer {
  if (call.audit !== architectures[architecture].audit) return enosys;
  const calls = allowedCalls(architecture);
  if (call.number > Math.max(...calls.values()) || [...absentCalls.values()].includes(call.number)) return enosys;
  const name = [...calls].find(([, number]) => number === call.number)?.[0];
  if (name === undefined) return eperm;
  const condition = conditions[name];
  if (condition === undefined) return allow;
  const first = call.arguments[0]! & 0xffffffffn;
  const isMet =
    "isOneOf" in condition
      ? condition.isOneOf.some((value) => BigInt(value) === first)
      : (first & BigInt(condition.hasNoneOf)) === 0n;
  return isMet ? allow : eperm;
}

describe.each(names)("the filter of %s", (architecture) => {
  const { program } = systemCallFilter(architecture)!;
  const { audit } = architectures[architecture];
  const calls = allowedCalls(architecture);
  const answer = (number: number, first = 0n): Answer =>
    run(program, dataOf({ audit, number, arguments: [first, 0n, 0n, 0n, 0n, 0n] }));

  test("SC1, SC2 answers every call as the list says", () => {
    const value = fc.oneof(
      fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
      fc.constantFrom(...[0, 1, 2, 10, 16, 40, 8, 0x20000, 0x20008, 0xffffffff, 0x10000000, 0x11].map(BigInt)),
    );
    const call = fc.record({
      audit: fc.oneof(
        { weight: 6, arbitrary: fc.constant<number>(audit) },
        fc.constantFrom(0x40000003, 0x40000028, ...names.map((name) => architectures[name].audit)),
        fc.nat({ max: 0xffffffff }),
      ),
      number: fc.oneof(
        fc.nat({ max: 500 }),
        fc.constantFrom(...calls.values()),
        fc.constantFrom(...Object.keys(conditions).map((name) => calls.get(name)!)),
        fc.nat({ max: 0xffffffff }),
      ),
      arguments: fc.array(value, { minLength: 6, maxLength: 6 }),
    });
    fc.assert(
      fc.property(call, (drawn) => run(program, dataOf(drawn)) === expected(architecture, drawn)),
      { numRuns: 2000 },
    );
    for (let number = 0; number < 1000; number++)
      for (const first of [0n, 1n, 2n ** 32n - 1n])
        expect([number, answer(number, first)]).toEqual([
          number,
          expected(architecture, { audit, number, arguments: [first] }),
        ]);
  });

  test("is small enough for the kernel and for an argument", () => {
    expect(program.length % 8).toBe(0);
    expect(program.length / 8).toBeLessThan(256);
  });

  test("SC1 refuses what Docker refuses to a process without capabilities, and lets commands fork, trace and ask", () => {
    const number = (name: string): number => calls.get(name)!;
    const refused = [
      ..."add_key request_key keyctl bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register".split(
        " ",
      ),
      ..."kexec_load kexec_file_load init_module finit_module delete_module mount umount2 move_mount fsopen".split(" "),
      ..."fsconfig fsmount fspick open_tree mount_setattr pivot_root setns unshare chroot swapon swapoff reboot acct".split(
        " ",
      ),
      ..."quotactl settimeofday clock_settime nfsservctl iopl ioperm open_by_handle_at name_to_handle_at".split(" "),
      ..."lookup_dcookie syslog kcmp pidfd_getfd mbind fanotify_init uselib".split(" "),
    ];
    expect(refused.filter((name) => calls.has(name))).toEqual([]);
    expect([answer(number("clone"), 0x1200011n), answer(number("clone"), 0x10000011n)]).toEqual([allow, eperm]);
    expect(answer(435)).toBe(enosys);
    expect(["ptrace", "process_vm_readv", "execve", "rseq"].map((name) => answer(number(name)))).toEqual(
      Array(4).fill(allow),
    );
    expect([1n, 2n, 10n, 16n, 40n].map((family) => answer(number("socket"), family))).toEqual([
      ...Array(4).fill(allow),
      eperm,
    ]);
    expect([answer(number("personality"), 0xffffffffn), answer(number("personality"), 0x40000n)]).toEqual([
      allow,
      eperm,
    ]);
  });

  test("SC2 answers other tables and x32 as a kernel without them", () => {
    const other = architectures[architecture === "x64" ? "arm64" : "x64"].audit;
    for (const foreign of [other, 0x40000003, 0x40000028])
      expect(run(program, dataOf({ audit: foreign, number: calls.get("read")!, arguments: [0n] }))).toBe(enosys);
    for (const low of [0, 39, 520, 0x3fffffff]) expect(answer(0x40000000 + low)).toBe(enosys);
    expect(answer(0xffffffff)).toBe(enosys);
  });
});

test("an architecture that is not on the list has no filter", () => {
  expect(["ia32", "riscv64", "toString"].map(systemCallFilter)).toEqual([undefined, undefined, undefined]);
});

/** Linux's own numbers, of the headers of this machine; none where it has none. */
const headers = {
  x64: ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"],
  arm64: ["/usr/include/asm-generic/unistd.h"],
};
describe.each(names)("the numbers of %s", (architecture) => {
  const path = headers[architecture].find((header) => existsSync(header));
  test.skipIf(path === undefined)(`are Linux's${path === undefined ? " (skipped: there are no headers)" : ""}`, () => {
    const text = readFileSync(path!, "utf8");
    const namesOf = new Map<number, string[]>();
    const numbers = new Map<string, number>();
    // Where a call has one name with 32 bits and another one with 64, its number is that of a third.
    const shared = new Map(
      [...text.matchAll(/^#define __NR3264_(\w+) (\d+)/gm)].map(([, name, value]) => [name, value]),
    );
    for (const [, name = "", third, value] of text.matchAll(/^#define __NR_(\w+) (?:__NR3264_(\w+)|(\d+))/gm)) {
      if (name === "syscalls") continue;
      const number = Number(value ?? shared.get(third));
      numbers.set(name, number);
      namesOf.set(number, [...(namesOf.get(number) ?? []), name]);
    }
    // Headers may be older than the list, not say otherwise.
    const wrong = [...allowedCalls(architecture)].filter(
      ([name, number]) => number !== (numbers.get(name) ?? number) || namesOf.get(number)?.includes(name) === false,
    );
    expect(wrong).toEqual([]);
    expect(numbers.size).toBeGreaterThan(290);
  });
});

test("SC4 the profile of an engine has the same list", () => {
  const { defaultAction, archMap, syscalls } = JSON.parse(systemCallProfile());
  expect([defaultAction, archMap]).toEqual([
    "SCMP_ACT_ERRNO",
    ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"].map((architecture) => ({ architecture, subArchitectures: [] })),
  ]);
  type Arg = { index: number; op: string; value: number; valueTwo?: number };
  const rules = syscalls as { names: string[]; action: string; errnoRet?: number; args?: Arg[] }[];
  const holds = ({ op, value, valueTwo }: Arg, first: bigint): boolean =>
    op === "SCMP_CMP_EQ" ? first === BigInt(value) : (first & BigInt(value)) === BigInt(valueTwo!);
  const answer = (name: string, first: bigint): Answer => {
    const rule = rules.find(({ names, args = [] }) => names.includes(name) && args.every((arg) => holds(arg, first)));
    if (rule === undefined) return eperm;
    return rule.action === "SCMP_ACT_ALLOW" ? allow : rule.errnoRet === 38 ? enosys : eperm;
  };
  for (const architecture of names) {
    const { audit } = architectures[architecture];
    for (const [name, number] of [...allowedCalls(architecture), ...absentCalls])
      for (const first of [0n, 1n, 2n, 8n, 10n, 16n, 40n, 0x1200011n, 0x10000011n, 0x20008n, 0xffffffffn])
        expect([name, answer(name, first)]).toEqual([
          name,
          expected(architecture, { audit, number, arguments: [first] }),
        ]);
  }
  expect(["keyctl", "io_uring_setup", "mount", "unshare", "bpf"].map((name) => answer(name, 0n))).toEqual(
    Array(5).fill(eperm),
  );
});

const info = { NCPU: 2, DefaultRuntime: "runc", Runtimes: { runc: {}, runsc: {} } };
test.each([
  ["listed", "runc", ["name=seccomp,profile=default"], /^no-new-privileges seccomp=\{/],
  ["listed", "runsc", [], /^no-new-privileges$/],
  ["engine", "runc", [], /^no-new-privileges$/],
] as const)("SC4 %s calls by %s, of an engine with %j", (systemCalls, runtime, SecurityOptions, options) => {
  const own = { ...info, SecurityOptions: [...SecurityOptions] };
  expect(securityOptionsOf(own, { systemCalls, runtime }).join(" ")).toMatch(options);
});

test("SC4 an engine that filters nothing is refused, with the remedy", () => {
  expect(() =>
    securityOptionsOf({ ...info, SecurityOptions: [] }, { systemCalls: "listed", runtime: undefined }),
  ).toThrow(/filters no system calls .*; use an engine and a kernel with seccomp, or .* docker.systemCalls: engine/);
});

const isRoot = process.platform === "linux" && process.getuid?.() === 0;
describe.skipIf(!isRoot)(`what puts a filter on${isRoot ? "" : " (skipped: this is not root)"}`, () => {
  const filter = systemCallFilter(process.arch)!;
  const command = ["/bin/sh", "-c", "grep ^Seccomp: /proc/self/status"];
  const start = (program: Buffer, root = "/"): string[] =>
    behindFilter({ ...filter, program }, { perl: "/usr/bin/perl", root, command });

  test("SC3 becomes the command behind it", () => {
    const [perl = "", ...args] = start(filter.program);
    expect(execFileSync(perl, args, { encoding: "utf8" })).toBe("Seccomp:\t2\n");
  });

  test.each([
    ["the filter", start(Buffer.alloc(8, 0xff)), /^system call filter: Invalid argument/],
    ["its root", start(filter.program, "/nowhere"), /^root '\/nowhere': No such file/],
  ])("SC3 ends instead where the kernel does not take %s", (_, [perl = "", ...args], why) => {
    const { status, stdout, stderr } = spawnSync(perl, args, { encoding: "utf8" });
    expect([status !== 0, stdout, stderr]).toEqual([true, "", expect.stringMatching(why)]);
  });
});

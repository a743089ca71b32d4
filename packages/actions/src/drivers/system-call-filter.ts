/**
 * A seccomp filter for commands, compiled from `system-calls.ts`, and what puts it on before it becomes a command.
 *
 * SC1 a system call that is not on the list is refused with EPERM. One that is newer than the list, or clone3, is answered as by a
 *    kernel without it (ENOSYS), since libraries fall back on that answer alone.
 * SC2 calls by another architecture's table, where the numbers mean others, are answered with ENOSYS, all of them; x32 has the
 *    architecture of x86-64, and numbers above all of the list.
 * SC3 nothing becomes a command without its filter, and no command takes it off: the kernel can only add filters.
 */
import { type Architecture, absentCalls, allowedCalls, architectures, conditions } from "./system-calls.ts";

/** As `struct sock_filter`: what to do, how many to skip where a test holds and where not, its operand. */
type Instruction = readonly [code: number, ifSo: number, ifNot: number, operand: number];

// linux/bpf_common.h: BPF_LD+W+ABS, BPF_JMP+JEQ, +JGE, +JSET (with BPF_K), BPF_RET.
const [load, ifEqual, ifAtLeast, ifAnyBit, answer] = [0x20, 0x15, 0x35, 0x45, 0x06] as const;
/** Offsets in `struct seccomp_data`; of the first argument, the lower half (both architectures are little-endian). */
const [numberAt, architectureAt, argumentAt] = [0, 4, 16] as const;
const allowed: Instruction = [answer, 0, 0, 0x7fff0000];
const errno = (code: number): Instruction => [answer, 0, 0, 0x00050000 | code];
const [refused, absent] = [errno(1), errno(38)];

/** From a number to that of the next range. */
type Range = { readonly from: number; readonly then: readonly Instruction[] };

export type SystemCallFilter = {
  /** as the kernel takes it: instructions of 8 bytes each */
  readonly program: Buffer;
  /** the numbers of the calls that are made before it is on, and to put it on */
  readonly setsid: number;
  readonly seccomp: number;
};

/** Undefined for an architecture of this kind of machine that the list does not have. */
export function systemCallFilter(architecture: string): SystemCallFilter | undefined {
  if (!isListed(architecture)) return undefined;
  const [setsid, seccomp] = ["setsid", "seccomp"].map((name) => allowedCalls(architecture).get(name)!);
  return { program: compiled(architecture), setsid: setsid!, seccomp: seccomp! };
}

const isListed = (architecture: string): architecture is Architecture => Object.hasOwn(architectures, architecture);

function compiled(architecture: Architecture): Buffer {
  const answers = new Map<number, readonly Instruction[]>();
  for (const [name, number] of allowedCalls(architecture)) answers.set(number, underConditionOf(name));
  const newest = Math.max(...answers.keys());
  for (const number of absentCalls.values()) answers.set(number, [absent]);
  const ranges: Range[] = [];
  for (let from = 0; from <= newest + 1; from++) {
    const then = from > newest ? [absent] : (answers.get(from) ?? [refused]);
    const before = ranges.at(-1)?.then;
    if (before?.length !== 1 || then.length !== 1 || before[0] !== then[0]) ranges.push({ from, then });
  }
  const program: Instruction[] = [
    [load, 0, 0, architectureAt],
    [ifEqual, 1, 0, architectures[architecture].audit],
    absent,
    [load, 0, 0, numberAt],
    ...search(ranges),
  ];
  const bytes = Buffer.alloc(program.length * 8);
  program.forEach(([code, ifSo, ifNot, operand], n) => {
    bytes.writeUInt16LE(code, n * 8);
    bytes.writeUInt8(ifSo, n * 8 + 2); // throws where it is too far
    bytes.writeUInt8(ifNot, n * 8 + 3);
    bytes.writeUInt32LE(operand, n * 8 + 4);
  });
  return bytes;
}

function underConditionOf(name: string): readonly Instruction[] {
  const condition = conditions[name];
  if (condition === undefined) return [allowed];
  const first: Instruction = [load, 0, 0, argumentAt];
  if ("hasNoneOf" in condition) return [first, [ifAnyBit, 0, 1, condition.hasNoneOf], refused, allowed];
  const values = condition.isOneOf;
  return [first, ...values.map((value, n): Instruction => [ifEqual, values.length - n, 0, value]), refused, allowed];
}

/** The half of the ranges that the number is in, until it is one. */
function search(ranges: readonly Range[]): readonly Instruction[] {
  if (ranges.length === 1) return ranges[0]!.then;
  const middle = ranges.length >> 1;
  const below = search(ranges.slice(0, middle));
  return [[ifAtLeast, below.length, 0, ranges[middle]!.from], ...below, ...search(ranges.slice(middle))];
}

/**
 * SC3: the root is entered here, which the filter refuses, and the session begun, which saves a program.
 * SECCOMP_SET_MODE_FILTER with a `struct sock_fprog`.
 */
const becomeFiltered = `
my ($setsid, $seccomp, $root, $filter) = splice @ARGV, 0, 4;
syscall($setsid + 0) > 0 or die "session: $!\\n";
chroot $root and chdir "/" or die "root '$root': $!\\n";
$filter = pack "H*", $filter;
my $program = pack "S x6 P", length($filter) / 8, $filter;
syscall($seccomp + 0, 1, 0, $program) == 0 or die "system call filter: $!\\n";
exec { $ARGV[0] } @ARGV or die "'$ARGV[0]': $!\\n";
`;

type Filtered = { readonly perl: string; readonly root: string; readonly command: readonly string[] };

/** The command that, as root, begins a session, enters a root, puts the filter on, and becomes another one. */
export const behindFilter = (
  { program, setsid, seccomp }: SystemCallFilter,
  { perl, root, command }: Filtered,
): string[] => [
  ...[perl, "-e", becomeFiltered, String(setsid), String(seccomp), root, program.toString("hex")],
  ...command,
];

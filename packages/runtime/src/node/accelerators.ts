/** The accelerators of this machine, as the vendors' own tools list them. */
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { z } from "zod";

export type Accelerator = {
  readonly kind: "cuda" | "rocm";
  readonly index: number;
  readonly memoryBytes: number;
  /** as the vendor calls it */
  readonly name?: string | undefined;
  /** the NUMA node that it is attached to */
  readonly numa?: number | undefined;
};

type Found = Omit<Accelerator, "kind">;
/** Prints what `parse` reads; it throws on what is not of that form at all. */
export type AcceleratorTool = {
  readonly command: readonly [string, ...string[]];
  readonly parse: (output: string) => readonly Found[];
};

/** The first tool of a kind that lists something is believed: `amd-smi` replaces `rocm-smi`, and neither is everywhere. */
export const acceleratorTools: Readonly<Record<Accelerator["kind"], readonly AcceleratorTool[]>> = {
  cuda: [
    {
      command: ["nvidia-smi", "--query-gpu=index,memory.total,pci.bus_id,name", "--format=csv,noheader,nounits"],
      parse: (output) => parseNvidiaSmi(output, numaOfBus),
    },
  ],
  rocm: [
    { command: ["amd-smi", "static", "--asic", "--vram", "--numa", "--json"], parse: parseAmdSmi },
    { command: ["rocm-smi", "--showmeminfo", "vram", "--showproductname", "--json"], parse: parseRocmSmi },
  ],
};

const toolTimeoutMs = 10_000;
const mebibyte = 2 ** 20;
let found: readonly Accelerator[] | undefined;

/** Asked of the tools once a process: they take long, and devices do not come and go. */
export function findAccelerators(): readonly Accelerator[] {
  found ??= (Object.keys(acceleratorTools) as Accelerator["kind"][]).flatMap((kind) => {
    for (const { command, parse } of acceleratorTools[kind]) {
      const [tool, ...args] = command;
      try {
        const stdio: ["ignore", "pipe", "ignore"] = ["ignore", "pipe", "ignore"];
        const listed = parse(execFileSync(tool, args, { encoding: "utf8", timeout: toolTimeoutMs, stdio }));
        if (listed.length > 0) return listed.map((each) => ({ kind, ...each }));
      } catch {
        // the tool is missing, finds nothing, or prints what it never printed before
      }
    }
    return [];
  });
  return found;
}

/** Lines as `0, 143771, 00000000:19:00.0, NVIDIA H200`: index, MiB, bus and name, of which the last two may be missing. */
export function parseNvidiaSmi(output: string, numaOf: (bus: string) => number | undefined = () => undefined): Found[] {
  return output.split("\n").flatMap((line) => {
    const match = /^\s*(\d+)\s*,\s*(\d+)\s*(?:,\s*([0-9A-Fa-f:.]+)\s*(?:,\s*(.+?)\s*)?)?$/.exec(line);
    if (match === null) return [];
    const [, index, mebibytes, bus, name] = match;
    const numa = bus === undefined ? undefined : numaOf(bus);
    return [
      {
        index: Number(index),
        memoryBytes: Number(mebibytes) * mebibyte,
        ...(name === undefined ? {} : { name: shortName(name) }),
        ...(numa === undefined ? {} : { numa }),
      },
    ];
  });
}

const Amount = z.union([
  z.object({ value: z.number().nonnegative(), unit: z.string() }),
  z
    .string()
    .regex(/^\d+ \w+$/)
    .transform((text) => ({ value: Number(text.split(" ")[0]), unit: text.split(" ")[1] as string })),
]);
const AmdGpu = z.looseObject({
  gpu: z.int().nonnegative(),
  vram: z.looseObject({ size: Amount }),
  asic: z.looseObject({ market_name: z.string() }).optional().catch(undefined),
  numa: z.looseObject({ node: z.int() }).optional().catch(undefined),
});
const AmdSmi = z.union([z.array(z.unknown()), z.object({ gpu_data: z.array(z.unknown()) })]);
const unitBytes: Readonly<Record<string, number>> = { KB: 1024, MB: mebibyte, GB: 2 ** 30 };

/** A list of GPUs, or since ROCm 7 an object that has it as `gpu_data`; its MB are MiB. */
export function parseAmdSmi(output: string): Found[] {
  const parsed = AmdSmi.parse(JSON.parse(output));
  return (Array.isArray(parsed) ? parsed : parsed.gpu_data).flatMap((gpu) => {
    const read = AmdGpu.safeParse(gpu);
    if (!read.success) return [];
    const { gpu: index, vram, asic, numa } = read.data;
    const memoryBytes = vram.size.value * (unitBytes[vram.size.unit] ?? mebibyte);
    return [
      { index, memoryBytes, ...nameOf(asic?.market_name), ...(numa && numa.node >= 0 ? { numa: numa.node } : {}) },
    ];
  });
}

const RocmCard = z.looseObject({ "VRAM Total Memory (B)": z.coerce.number() });

/** An object with a key `card0`, `card1`, … for each accelerator; `Card series` is `Card Series` since ROCm 6. */
export function parseRocmSmi(output: string): Found[] {
  const cards = z.record(z.string(), z.unknown()).parse(JSON.parse(output));
  return Object.entries(cards).flatMap(([key, card]) => {
    const index = /^card(\d+)$/.exec(key)?.[1];
    const read = RocmCard.safeParse(card);
    if (index === undefined || !read.success) return [];
    const series = read.data["Card Series"] ?? read.data["Card series"];
    return [{ index: Number(index), memoryBytes: read.data["VRAM Total Memory (B)"], ...nameOf(series) }];
  });
}

const nameOf = (name: unknown): { name: string } | object =>
  typeof name === "string" && name !== "" && name !== "N/A" ? { name: shortName(name) } : {};

const shortName = (name: string): string => name.slice(0, 100);

/** Undefined where the kernel does not say. */
function numaOfBus(bus: string): number | undefined {
  try {
    const id = bus.toLowerCase().replace(/^0{4}(?=[0-9a-f]{4}:)/, "");
    const node = Number(readFileSync(`/sys/bus/pci/devices/${id}/numa_node`, "utf8"));
    return Number.isInteger(node) && node >= 0 ? node : undefined;
  } catch {
    return undefined;
  }
}

/**
 * What makers publish of their devices. Rates are peaks, of dense bfloat16 products; how much of them is reached is said in
 * `efficiencies`.
 */
import { TreadleError } from "@treadle/contracts";

export type DeviceFigures = {
  readonly memoryBytes: number;
  /** floating-point operations a second */
  readonly flops: number;
  /** of its own memory, bytes a second */
  readonly memoryRate: number;
  /** to other devices of a node, bytes a second and direction */
  readonly linkRate: number;
  /** to the host's memory, bytes a second and direction */
  readonly hostRate: number;
};

const gib = 2 ** 30;
const pcie4 = 32e9;
const pcie5 = 64e9;

/** From data sheets: NVIDIA's of A100 SXM, L40S, H20, H100 SXM, H200 SXM and HGX B200, AMD's of MI300X and MI325X. */
export const deviceFigures = {
  "a100-40g": { memoryBytes: 40 * gib, flops: 312e12, memoryRate: 1.555e12, linkRate: 300e9, hostRate: pcie4 },
  "a100-80g": { memoryBytes: 80 * gib, flops: 312e12, memoryRate: 2.039e12, linkRate: 300e9, hostRate: pcie4 },
  l40s: { memoryBytes: 48 * gib, flops: 362e12, memoryRate: 0.864e12, linkRate: pcie4, hostRate: pcie4 },
  h20: { memoryBytes: 96 * gib, flops: 148e12, memoryRate: 4.0e12, linkRate: 450e9, hostRate: pcie5 },
  h100: { memoryBytes: 80 * gib, flops: 989e12, memoryRate: 3.35e12, linkRate: 450e9, hostRate: pcie5 },
  h200: { memoryBytes: 141e9, flops: 989e12, memoryRate: 4.8e12, linkRate: 450e9, hostRate: pcie5 },
  b200: { memoryBytes: 180e9, flops: 2250e12, memoryRate: 7.7e12, linkRate: 900e9, hostRate: pcie5 },
  mi300x: { memoryBytes: 192e9, flops: 1307e12, memoryRate: 5.3e12, linkRate: 448e9, hostRate: pcie5 },
  mi325x: { memoryBytes: 256e9, flops: 1307e12, memoryRate: 6.0e12, linkRate: 448e9, hostRate: pcie5 },
} as const satisfies Record<string, DeviceFigures>;

export const deviceNames: readonly string[] = Object.keys(deviceFigures);

/** Cards of other figures than the modules above that they are named after. */
const otherForms = ["pcie", "nvl"];

/** Of a device as its vendor calls it, such as `NVIDIA A100-SXM4-80GB`; undefined where no figures are known to be its own. */
export function figuresNameOf(vendorName: string): string | undefined {
  const words = vendorName.toLowerCase().split(/[^a-z0-9]+/);
  if (words.some((word) => otherForms.includes(word))) return undefined;
  return deviceNames.find((name) => {
    const [model = "", memory] = name.split("-");
    return words.includes(model) && (memory === undefined || words.includes(`${memory}b`));
  });
}

/** Throws `config.invalid` with the names that there are. */
export function figuresOf(name: string): DeviceFigures {
  if (Object.hasOwn(deviceFigures, name)) return deviceFigures[name as keyof typeof deviceFigures];
  throw new TreadleError(
    "config.invalid",
    `there are no figures of device '${name}'; known are ${deviceNames.join(", ")}`,
  );
}

/** A node as most are built: eight devices, and 400 Gb/s of network for each. */
export const devicesPerNode = 8;
export const networkRate = 50e9;

/**
 * The part of a peak that engines reach. The Llama 3 report (arXiv 2407.21783, §3.3) has 0.38 to 0.43 of the operations that a step
 * needs; with a third more that are done again, 0.5 of all is at its lower end. The others are what served models commonly show.
 * Measured steps correct all of them.
 */
export const efficiencies = {
  training: 0.5,
  /** of passes over whole sequences: prompts, and scores */
  passes: 0.5,
  /** of memory's rate, while tokens are made one by one */
  decoding: 0.6,
  links: 0.7,
} as const;

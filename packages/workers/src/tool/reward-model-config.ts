import { ModelService } from "@treadle/actions";
import { z } from "zod";

/** A reward model and what it takes of a device. */
const RewardModel = ModelService.extend({
  /** what its score counts in the reward */
  weight: z.number().default(1),
  /** devices that it runs on, side by side */
  devices: z.literal([1, 2, 4, 8]).default(1),
  /** on every one of them */
  memoryMiB: z.number().positive(),
  /** what it takes to start, until that was measured */
  restoreSeconds: z.number().nonnegative().optional(),
});

/** Reward models as services that share devices: restored when they are asked, evicted when another needs the room. */
export const RewardModelConfig = z
  .strictObject({
    models: z.record(z.string().min(1), RewardModel),
    devices: z.literal([1, 2, 4, 8]).default(1),
    memoryMiBPerDevice: z.number().positive(),
    /**
     * `main`: without an accelerator a device is a share of main memory; `nvidia`: CUDA devices, which it is given and locks like
     * any component, and whose free memory `nvidia-smi` measures
     */
    memory: z.enum(["main", "nvidia"]).default("main"),
    /** answers `{ "texts": [...] }` with `{ "scores": [...] }` */
    path: z.string().startsWith("/").default("/score"),
    timeoutMs: z.number().positive().default(60_000),
  })
  .superRefine(({ models, devices, memoryMiBPerDevice }, context) => {
    if (Object.keys(models).length === 0)
      context.addIssue({
        code: "custom",
        path: ["models"],
        message: "names no model; name one, or leave out the judge",
      });
    for (const [name, model] of Object.entries(models)) {
      const refuse = (key: string, message: string): void =>
        context.addIssue({ code: "custom", path: ["models", name, key], message });
      if (model.memoryMiB > memoryMiBPerDevice)
        refuse(
          "memoryMiB",
          `'${model.memoryMiB}' is more than a device has, '${memoryMiBPerDevice}'; raise memoryMiBPerDevice`,
        );
      if (model.devices > devices)
        refuse("devices", `'${model.devices}' are more than there are, '${devices}'; raise devices`);
    }
  });
export type RewardModelConfig = z.infer<typeof RewardModelConfig>;

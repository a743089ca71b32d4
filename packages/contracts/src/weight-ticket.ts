import { z } from "zod";

/** As in the file: `dtype` as safetensors names it, the checksum of the tensor's bytes as zlib computes it. */
const TicketTensor = z.strictObject({
  name: z.string().min(1).max(1000),
  shape: z.array(z.int().nonnegative()).max(16),
  dtype: z.enum(["F32", "BF16"]),
  crc32: z.int().nonnegative().max(0xffff_ffff),
});

/**
 * Which weights an engine has published, and where another engine finds them: in the file `model.safetensors` of `folder`, in the
 * folder `store` of the process that wrote it, or in the memory of a device. A receiver takes the ticket if it can open the store and
 * finds the nonce there; to a receiver on another file system, the weights travel as bytes (`Weights`).
 */
export const WeightTicket = z.strictObject({
  policyVersion: z.int().nonnegative(),
  /** of version and tensors: it tells these weights from all others, as `Weights.checksum` does */
  checksum: z.string().regex(/^[0-9a-f]{64}$/),
  store: z
    .string()
    .max(4096)
    .regex(/^\/[^\0]*[^/\0]$/, "must be an absolute path")
    .refine((path) => !path.split("/").some((part) => part === ".." || part === "."), "must have no '..' and no '.'"),
  /** content of the file `nonce` in the store */
  nonce: z.string().regex(/^[0-9a-f]{32}$/),
  folder: z.string().regex(/^version-\d{1,16}-\d{1,16}$/),
  /** in the order of their bytes */
  tensors: z
    .array(TicketTensor)
    .min(1)
    .max(2 ** 17),
  /** what is trained of them, where that is an adapter, as PEFT lays it out: `adapter_model.safetensors` and `adapter_config.json` in the same folder */
  adapter: z
    .strictObject({
      rank: z.int().positive(),
      /** in the order of their bytes */
      tensors: z
        .array(TicketTensor)
        .min(1)
        .max(2 ** 17),
      /** of the configuration's bytes */
      configCrc32: z.int().nonnegative().max(0xffff_ffff),
    })
    .optional(),
  /** where they are, in place of the file: memory that another process on that device maps by its handle (CUDA IPC). It is there as long as the file `device` is in the folder */
  device: z.strictObject({ uuid: z.string().min(1).max(100), handle: z.string().regex(/^[0-9a-f]{128}$/) }).optional(),
  /** its process also sends the file, over a process group of this kind, to engines that join one */
  collective: z.enum(["gloo", "nccl"]).optional(),
});
export type WeightTicket = z.infer<typeof WeightTicket>;

/** A process group of two, over which an engine sends what it publishes: its name, and until the two have met, where it waits for the other. */
export const WeightLink = z.strictObject({
  name: z.string().regex(/^[0-9a-f]{16}$/),
  place: z
    .strictObject({
      host: z.string().min(1).max(255),
      port: z.int().positive().max(65535),
      /** each proves to the other that it has it */
      secret: z.string().regex(/^[0-9a-f]{64}$/),
    })
    .optional(),
});
export type WeightLink = z.infer<typeof WeightLink>;

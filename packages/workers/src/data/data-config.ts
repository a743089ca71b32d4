import { z } from "zod";

const Files = z.union([z.string().min(1), z.array(z.string().min(1)).min(1)]);

/** What rows are, wherever they come from. */
const rows = {
  /** how the fields are called; all others become the prompt's metadata */
  fields: z
    .strictObject({
      /** text */
      prompt: z.string().min(1).default("prompt"),
      /** instead of `prompt`: messages with a role, for a tokenizer with a chat template */
      messages: z.string().min(1).optional(),
      /** tools that the chat template describes */
      tools: z.string().min(1).optional(),
      /** text, number or boolean that a reward compares with; null: there is none */
      answer: z.string().min(1).nullable().default("answer"),
      /** unique in all files; default: a hash of the row */
      id: z.string().min(1).optional(),
    })
    .prefault({}),
  /** wraps each text prompt into a chat, for a tokenizer with a template */
  chat: z
    .strictObject({
      /** the first message */
      system: z.string().optional(),
    })
    .optional(),
  /** variables of the chat template's own, such as `enable_thinking` */
  template: z.record(z.string(), z.unknown()).optional(),
  /** tokens of the longest answer, with its end */
  maxAnswerTokens: z.int().positive(),
};
type Rows = { readonly chat?: object | undefined; readonly fields: { readonly messages?: string | undefined } };
const chatsOnce = ({ chat, fields }: Rows): boolean => !chat || !fields.messages;
const twice = { path: ["chat"], error: "nothing where fields.messages names whole chats" };

/** Prompts from files: JSONL (`.jsonl`, `.ndjson`) and Parquet (`.parquet`), by paths from the project's root. */
export const FileDataConfig = z
  .strictObject({
    /** `files`, the default; `module`: the rows of a module of the project's own */
    kind: z.literal("files").optional(),
    /** a file or several */
    train: Files,
    /** chooses among policies; default: a share of `train` */
    validation: Files.optional(),
    /** judges, and chooses nothing; default: a share of `train` */
    heldOut: Files.optional(),
    ...rows,
    /** share of `train` that is held out where `heldOut` names no file, by a hash of the prompt */
    heldOutFraction: z.number().min(0).lt(1).default(0.1),
    /** share of `train` that chooses among policies where `validation` names no file */
    validationFraction: z.number().min(0).lt(1).default(0.05),
    /** another number parts `train` in another way */
    split: z.int().nonnegative().default(0),
    /** of a prompt that leaves no room for the answer: ends the run before its first step, or leaves the row out */
    tooLong: z.enum(["refuse", "drop"]).default("refuse"),
    /** of all rows in memory; files are larger by what they are compressed, and 256 bytes a row come on top */
    maxMiB: z.number().positive().default(1024),
  })
  .refine(({ heldOutFraction, validationFraction }) => heldOutFraction + validationFraction < 1, {
    path: ["validationFraction"],
    error: "a number that leaves rows to train on beside heldOutFraction",
  })
  .refine(chatsOnce, twice);
export type FileDataConfig = z.infer<typeof FileDataConfig>;

/** Prompts from a module of the project, which goes on from a position that it says itself. */
export const ModuleDataConfig = z
  .strictObject({
    kind: z.literal("module"),
    /** the file that exports `createDataset`, in JavaScript or TypeScript, from the project's root */
    module: z.string().min(1),
    /** what its `createDataset` gets as `settings`; it checks them itself */
    settings: z.record(z.string(), z.json()).default({}),
    /** that `createDataset`, loaded and called, and each call of the dataset's functions may take */
    timeoutMs: z
      .number()
      .positive()
      .max(2 ** 31 - 1) // a longer timer would end at once
      .default(300_000),
    ...rows,
  })
  .refine(chatsOnce, twice);
export type ModuleDataConfig = z.infer<typeof ModuleDataConfig>;

/** Where prompts come from. */
export const DataConfig = z.discriminatedUnion("kind", [FileDataConfig, ModuleDataConfig]);
export type DataConfig = z.infer<typeof DataConfig>;
/** How rows are read. */
export type RowConfig = Pick<FileDataConfig, "fields" | "chat" | "template">;

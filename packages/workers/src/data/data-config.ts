import { z } from "zod";

const Files = z.union([z.string().min(1), z.array(z.string().min(1)).min(1)]);

/** Prompts from files: JSONL (`.jsonl`, `.ndjson`) and Parquet (`.parquet`), by paths from the project's root. */
export const DataConfig = z
  .strictObject({
    /** a file or several */
    train: Files,
    /** chooses among policies; default: a share of `train` */
    validation: Files.optional(),
    /** judges, and chooses nothing; default: a share of `train` */
    heldOut: Files.optional(),
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
    /** share of `train` that is held out where `heldOut` names no file, by a hash of the prompt */
    heldOutFraction: z.number().min(0).lt(1).default(0.1),
    /** share of `train` that chooses among policies where `validation` names no file */
    validationFraction: z.number().min(0).lt(1).default(0.05),
    /** another number parts `train` in another way */
    split: z.int().nonnegative().default(0),
    /** of a prompt that leaves no room for the answer: ends the run before its first step, or leaves the row out */
    tooLong: z.enum(["refuse", "drop"]).default("refuse"),
    /** tokens of the longest answer, with its end */
    maxAnswerTokens: z.int().positive(),
    /** of all rows in memory; files are larger by what they are compressed, and 256 bytes a row come on top */
    maxMiB: z.number().positive().default(1024),
  })
  .refine(({ heldOutFraction, validationFraction }) => heldOutFraction + validationFraction < 1, {
    path: ["validationFraction"],
    error: "a number that leaves rows to train on beside heldOutFraction",
  })
  .refine(({ chat, fields }) => !chat || !fields.messages, {
    path: ["chat"],
    error: "nothing where fields.messages names whole chats",
  });
export type DataConfig = z.infer<typeof DataConfig>;

/** What a row of a file says, by the configuration's names of its fields. Pure. */
import { createHash } from "node:crypto";
import { Message, type Prompt } from "@treadle/contracts";
import type { Tokenizer } from "@treadle/learning";
import { z } from "zod";
import type { RowConfig } from "./data-config.ts";
import { invalid, shortened } from "./read-rows.ts";

/** A prompt before it is tokens. */
export type Content = Pick<Prompt, "answer" | "messages" | "metadata" | "text"> & {
  readonly tools?: readonly unknown[] | undefined;
};

/** Text and tokens of a row. */
export function tokensOf(
  { text, messages, tools }: Content,
  { tokenizer, config }: { readonly tokenizer: Tokenizer; readonly config: RowConfig },
  where: string,
): Pick<Prompt, "text" | "tokens"> {
  const { chat, template } = config;
  const system: Message[] = chat?.system === undefined ? [] : [{ role: "system", content: chat.system }];
  const asked = messages ?? (chat ? [...system, { role: "user", content: text }] : undefined);
  if (asked && !tokenizer.chat) {
    throw invalid(
      `${where}: it is a chat, and the tokenizer has no chat template: name a tokenizer's folder that has one, or a text by data.fields.prompt`,
    );
  }
  try {
    const written = asked ? (tokenizer.chat?.(asked, { tools, variables: template }) ?? "") : (text ?? "");
    return { text: written, tokens: tokenizer.encode(written, { special: !asked }) };
  } catch (error) {
    throw invalid(`${where}: ${(error as Error).message}`);
  }
}

const Messages = z.array(Message).min(1);
const isAnswer = (value: unknown): value is string | number | boolean =>
  typeof value === "string" || typeof value === "boolean" || (typeof value === "number" && Number.isFinite(value));

/** The fields of a row by what they are for. */
export function contentOf(
  value: Record<string, unknown>,
  where: string,
  { fields }: Pick<RowConfig, "fields">,
): Content {
  const { prompt, messages, tools, answer, id } = fields;
  const taken = new Set([messages ?? prompt, tools, answer, id]);
  const rest = Object.entries(value).filter(([name]) => !taken.has(name));
  const refuse = (field: string, key: string, allowed: string): never => {
    const named = Object.keys(value)
      .map((name) => `'${name}'`)
      .join(", ");
    throw invalid(
      `${where}: ${described(field, value[field])}: allowed is ${allowed}; its fields are ${named}; mend the row, or name another field by data.fields.${key}`,
    );
  };
  const own: {
    text?: string;
    messages?: Message[];
    tools?: unknown[];
    answer?: string;
    metadata?: Record<string, unknown>;
  } = {};
  if (messages === undefined) {
    const text = value[prompt];
    if (typeof text !== "string" || text === "") refuse(prompt, "prompt", "text");
    own.text = text as string;
  } else {
    const chat = Messages.safeParse(value[messages]);
    if (!chat.success) refuse(messages, "messages", "a list of messages, each with a role");
    own.messages = chat.data as Message[];
  }
  if (tools !== undefined && value[tools] !== undefined && value[tools] !== null) {
    if (!Array.isArray(value[tools])) refuse(tools, "tools", "a list of tools");
    own.tools = value[tools] as unknown[];
  }
  if (answer !== null) {
    const given = value[answer];
    if (!isAnswer(given)) refuse(answer, "answer", "text, a number or a boolean");
    own.answer = String(given);
  }
  if (rest.length > 0) own.metadata = Object.fromEntries(rest);
  return own;
}

export function described(field: string, value: unknown): string {
  return value === undefined ? `it has no field '${field}'` : `its '${field}' is '${shortened(JSON.stringify(value))}'`;
}

/** Equal for equal values, in whatever order their keys stand. */
export function keyOf(value: unknown): string {
  return createHash("sha256").update(canonical(value)).digest("base64url").slice(0, 24);
}

function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join()}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value) ?? "undefined";
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return `{${entries.map(([key, each]) => `${JSON.stringify(key)}:${canonical(each)}`).join()}}`;
}

import { TreadleError } from "@treadle/contracts";
import type { z } from "zod";
import { protocolError } from "../protocol-error.ts";

/** Levels of nesting in one message. Whatever walks a value calls itself for each, and the stack has an end. */
const maxDepth = 128;

/** Below what servers take unless told otherwise, with room for signatures and seals. */
const maxTextBytes = 900_000;

/** Throws `link.frame-too-large` on what is larger than a message may be. */
export function boundedText(text: string, what: string, maxBytes = maxTextBytes): string {
  const bytes = Buffer.byteLength(text);
  if (bytes <= maxBytes) return text;
  throw new TreadleError(
    "link.frame-too-large",
    `${what} takes '${bytes}' bytes over the control plane, at most ${maxBytes} are allowed; pass less in it`,
  );
}

/** Throws `link.protocol` on what is no JSON or is nested deeper than any message. */
export function parseBounded(text: string): unknown {
  if (depthOf(text) > maxDepth) throw protocolError(`a message is nested deeper than ${maxDepth} levels`);
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw protocolError("a message is no JSON", cause);
  }
}

/** Undefined for what cannot be read: it was sent by no process of ours. */
export function readJson<Schema extends z.ZodType>(schema: Schema, text: string): z.infer<Schema> | undefined {
  try {
    return schema.safeParse(parseBounded(text)).data;
  } catch {
    return undefined;
  }
}

const [quote, backslash, openList, closeList, openObject, closeObject] = [...'"\\[]{}'].map((char) =>
  char.charCodeAt(0),
);

/** The most brackets that are open at once, outside of strings. */
function depthOf(text: string): number {
  let depth = 0;
  let deepest = 0;
  let isInString = false;
  for (let at = 0; at < text.length; at++) {
    const char = text.charCodeAt(at);
    if (isInString) {
      if (char === backslash) at++;
      else if (char === quote) isInString = false;
    } else if (char === quote) isInString = true;
    else if (char === openList || char === openObject) deepest = Math.max(deepest, ++depth);
    else if (char === closeList || char === closeObject) depth--;
  }
  return deepest;
}

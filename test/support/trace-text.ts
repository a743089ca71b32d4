import { readTrace } from "@treadle/observe";

/** The records of a trace as text: a batch a line, as JSON. */
export async function traceText(path: string): Promise<string> {
  let text = "";
  for await (const batch of readTrace([path])) text += `${JSON.stringify(batch)}\n`;
  return text;
}

/** How texts are fitted into a terminal. */
import { stripVTControlCharacters } from "node:util";
import cliTruncate from "cli-truncate";
import stringWidth from "string-width";

export {
  formatClock,
  formatCount,
  formatPercent,
  formatSeconds,
  formatTime,
  plural,
  significant,
} from "@treadle/dashboard/view";

// biome-ignore lint/suspicious/noControlCharactersInRegex: removing them is the point
const controlCharacters = /[\u0000-\u001f\u007f-\u009f]/g;
/** They show what follows in another order, break lines, or show nothing; joiners are left, of which words and emoji are made. */
const deceptive = /[\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]|[\u{e0000}-\u{e007f}]/gu;

/** A line as it was meant to be read: nothing in it moves a cursor, changes colours or writes into a clipboard. */
export function printable(line: string): string {
  return shown(stripVTControlCharacters(line).replaceAll("\t", "  ").replaceAll("\n", " "));
}

const shown = (text: string): string => text.replace(controlCharacters, "").replace(deceptive, "");

/** The same of several lines. */
export const printableLines = (text: string): string => text.split("\n").map(printable).join("\n");

/** JSON escapes control characters but for those above 126, which some terminals obey. */
export const jsonText = (value: unknown): string =>
  JSON.stringify(value).replaceAll(
    /[\u007f-\u009f]/g,
    (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );

/** One line without anything that moves a terminal's cursor or changes its colours. */
export function singleLine(text: string): string {
  return shown(stripVTControlCharacters(text).replace(/\s+/g, " ")).trim();
}

/** Cuts to `columns` cells, colours included; `…` says that something is missing. */
export function fit(text: string, columns: number): string {
  return columns <= 0 ? "" : cliTruncate(text, columns);
}

/** Fills up to `columns` cells, wide characters counted as such. */
export function padCells(text: string, columns: number): string {
  return text + " ".repeat(Math.max(0, columns - stringWidth(text)));
}

/** Breaks words so that no line exceeds `columns`; every line after the first is indented. */
export function wrap(text: string, columns: number, indent = ""): string[] {
  const lines: string[] = [];
  for (const paragraph of text.split("\n")) {
    let line = "";
    for (const word of paragraph.split(" ")) {
      const candidate = line === "" ? word : `${line} ${word}`;
      if (line !== "" && stringWidth(candidate) > columns) {
        lines.push(line);
        line = indent + word;
      } else line = candidate;
    }
    lines.push(line);
  }
  return lines;
}

export const gibibytes = (bytes: number): string => `${(bytes / 2 ** 30).toFixed(1)} GiB`;

/** The documents of the repository, and what stands in them. */
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { projectRoot } from "./project.ts";

export type CodeBlock = {
  readonly language: string;
  /** of ```` ```ts [run.ts] ```` */
  readonly file: string | undefined;
  /** what else its first line says, as ```` ```yaml over=workflows/bandit ```` */
  readonly info: string;
  readonly text: string;
  /** as `README.md:12` */
  readonly at: string;
};

export class MarkdownFile {
  /** from the root of the project */
  readonly path: string;
  readonly text: string;

  constructor(path: string) {
    this.path = path;
    this.text = readFileSync(join(projectRoot, path), "utf8");
  }

  get blocks(): CodeBlock[] {
    return [...this.text.matchAll(/^( *)```(\w+)(?: \[([^\]]+)\])?([^\n]*)\n(.*?)\n\1```$/gms)].map((match) => {
      const [, indent = "", language = "", file, info = "", text = ""] = match;
      const lines = text.split("\n").map((line) => (line.startsWith(indent) ? line.slice(indent.length) : line));
      return { language, file, info: info.trim(), text: lines.join("\n"), at: this.#placeOf(match.index) };
    });
  }

  /** What is neither a block of code nor code in a line. */
  get prose(): string {
    return this.#withoutBlocks.replace(/`[^`\n]*`/g, "");
  }

  get inlineCode(): { readonly text: string; readonly at: string }[] {
    return [...this.#withoutBlocks.matchAll(/`([^`]+)`/g)].map((match) => ({
      text: (match[1] as string).replace(/\s+/g, " "),
      at: this.#placeOf(match.index),
    }));
  }

  /** As GitHub and VitePress make them of headings. */
  get anchors(): string[] {
    return [...this.#withoutBlocks.matchAll(/^#{1,6} (.+)$/gm)].map(([, heading = ""]) =>
      heading
        .toLowerCase()
        .replace(/[^\p{L}\p{N}\s_-]/gu, "")
        .trim()
        .replace(/\s+/g, "-"),
    );
  }

  /** Blocks are blanked, so that positions stay. */
  get #withoutBlocks(): string {
    return this.text.replace(/^( *)```.*?\n\1```$/gms, (block) => block.replace(/[^\n]/g, " "));
  }

  #placeOf(index: number): string {
    return `${this.path}:${this.text.slice(0, index).split("\n").length}`;
  }
}

const listed = execFileSync("git", ["ls-files", "--cached", "--others", "--exclude-standard", "*.md"], {
  cwd: projectRoot,
  encoding: "utf8",
});

export const documents: readonly MarkdownFile[] = listed
  .split("\n")
  .filter((path) => path !== "" && existsSync(join(projectRoot, path)))
  .map((path) => new MarkdownFile(path));

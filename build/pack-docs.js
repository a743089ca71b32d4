// `node ../../build/pack-docs.js`, in a package's folder: puts the pages of the documentation into it; `remove` takes them out
// again. A link that leaves the pages, to sources of a checkout, becomes its text.
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const source = fileURLToPath(new URL("../docs/", import.meta.url));
rmSync("docs", { recursive: true, force: true });
if (process.argv[2] !== "remove") {
  // What the site's builder adds below these is no page of a checkout.
  const added = /^(node_modules|\.vitepress|reference\/api)\//;
  const pages = readdirSync(source, { recursive: true }).filter((path) => path.endsWith(".md") && !added.test(path));
  for (const page of pages) {
    const isPage = (target) =>
      target.startsWith("#") || pages.includes(join(dirname(page), target.replace(/#.*$/, "")));
    const text = readFileSync(join(source, page), "utf8").replace(
      /\[([^\][]*)\]\((?!https?:)([^)\s]+)\)/g,
      (link, label, target) => (isPage(target) ? link : label),
    );
    mkdirSync(dirname(join("docs", page)), { recursive: true });
    writeFileSync(join("docs", page), text);
  }
}

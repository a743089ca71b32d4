/** Writes the pages of `docs/reference` that come from code; a law test compares them with what this would write. */
import { writeFileSync } from "node:fs";
import { generatedPages } from "./pages.ts";

for (const [name, text] of Object.entries(await generatedPages())) {
  writeFileSync(new URL(`../reference/${name}`, import.meta.url), text);
}

/** Writes what of the documents comes from code, and what of them the code shows; a law test compares them with what this would write. */
import { writeFileSync } from "node:fs";
import { generatedPages } from "./pages.ts";

for (const [name, text] of Object.entries(await generatedPages())) {
  writeFileSync(new URL(`../../${name}`, import.meta.url), text);
}

// Puts the licence, which a checkout has once, into the package whose folder this is; `remove` takes it out again.
import { cpSync, rmSync } from "node:fs";

if (process.argv[2] === "remove") rmSync("LICENSE", { force: true });
else cpSync(new URL("../LICENSE", import.meta.url), "LICENSE");

// `node ../../build/pack-python.js <name>`, in a package's folder: puts a Python package, which a checkout has in `python`, into
// it; `remove` after the name takes it out again. Tests and what generates code stay behind.
import { cpSync, existsSync, rmSync } from "node:fs";

const [name, action] = process.argv.slice(2);
if (name === undefined)
  throw new Error("no Python package named; give one: node ../../build/pack-python.js treadle_torch");
rmSync("python", { recursive: true, force: true });
if (action !== "remove") {
  const source = new URL(`../python/${name}/`, import.meta.url);
  for (const path of ["pyproject.toml", "README.md", "requirements.txt", "src"]) {
    if (!existsSync(new URL(path, source))) continue; // not each locks what it runs on
    cpSync(new URL(path, source), `python/${name}/${path}`, {
      recursive: true,
      filter: (each) => !each.endsWith("__pycache__"),
    });
  }
}

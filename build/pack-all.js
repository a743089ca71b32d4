// `npm run pack -- <folder>`: what would be published of this checkout, one archive a package, for `treadle init --packages`.
import { execFileSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync } from "node:fs";
import { resolve } from "node:path";

const [folder] = process.argv.slice(2);
if (folder === undefined) throw new Error("no folder to pack into; give one: npm run pack -- ../packed");
const target = resolve(process.env.INIT_CWD ?? ".", folder);
mkdirSync(target, { recursive: true });
const published = readdirSync("packages").filter((name) => {
  const { private: isPrivate } = JSON.parse(readFileSync(`packages/${name}/package.json`, "utf8"));
  return !isPrivate;
});
execFileSync(
  "npm",
  ["pack", "--silent", "--pack-destination", target, ...published.map((name) => `--workspace=packages/${name}`)],
  { stdio: "inherit" },
);

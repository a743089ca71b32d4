/**
 * A browser for tests: Chromium, Chrome, or what Debian's package `chromium` unpacks. Elsewhere `npx playwright-core install
 * chromium` gets one, whose path `TREADLE_CHROMIUM` then names. Where none can be had, tests that need it are skipped, and say so.
 */
import { accessSync, constants } from "node:fs";
import { readdir, writeFile } from "node:fs/promises";
import { delimiter, join } from "node:path";
import type { Browser } from "playwright-core";

const names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

export function findChromium(): string | undefined {
  const named = process.env["TREADLE_CHROMIUM"];
  const folders = (process.env["PATH"] ?? "").split(delimiter);
  const candidates = [
    ...(named ? [named] : []),
    ...folders.flatMap((folder) => names.map((name) => join(folder, name))),
  ];
  return candidates.find((path) => {
    try {
      accessSync(path, constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
}

/** The path of a browser of which `folder` has the packages of Debian, unpacked: it finds its libraries and fonts there. */
export async function chromiumIn(folder: string): Promise<string> {
  const path = join(folder, "chromium.sh");
  const files = await readdir(join(folder, "usr/lib"), { recursive: true, withFileTypes: true });
  const libraries = new Set(files.filter(({ name }) => /\.so(\.|$)/.test(name)).map(({ parentPath }) => parentPath));
  const lines = [
    "#!/bin/sh",
    `export LD_LIBRARY_PATH='${[...libraries].join(":")}'`,
    `[ -e /etc/fonts/fonts.conf ] || export FONTCONFIG_SYSROOT='${folder}'`,
    `exec '${join(folder, "usr/lib/chromium/chromium")}' "$@"`,
  ];
  await writeFile(path, `${lines.join("\n")}\n`, { mode: 0o755 });
  return path;
}

export async function openChromium(executablePath: string): Promise<Browser> {
  const { chromium } = await import("playwright-core");
  // Root has no user namespaces for Chromium's sandbox; pages here are our own.
  return chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
}

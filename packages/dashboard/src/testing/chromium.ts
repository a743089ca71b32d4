/**
 * A browser for tests: Chromium, Debian's `chromium` package, or Chrome. Elsewhere `npx playwright-core install chromium` gets
 * one, whose path `TREADLE_CHROMIUM` then names. Where there is none, tests that need it are skipped, and say so.
 */
import { accessSync, constants } from "node:fs";
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

export async function openChromium(executablePath: string): Promise<Browser> {
  const { chromium } = await import("playwright-core");
  // Root has no user namespaces for Chromium's sandbox; pages here are our own.
  return chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
}

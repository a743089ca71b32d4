import { chromiumIn, findChromium } from "../../packages/dashboard/src/testing/chromium.ts";
import { unpackPackages } from "../../packages/transport/src/testing/debian-packages.ts";

/** Before all tests: a browser, in which pages are looked at. Where none can be had, those tests are skipped, and say so. */
export async function setup(): Promise<void> {
  if (findChromium() !== undefined) return;
  const unpacked = await unpackPackages("chromium", ["chromium"], { whole: true }).catch(() => undefined);
  if (unpacked !== undefined) process.env["TREADLE_CHROMIUM"] = await chromiumIn(unpacked);
}

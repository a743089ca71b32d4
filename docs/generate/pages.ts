import { commandLinePage } from "./command-line.ts";
import { configurationPage } from "./configuration.ts";
import { errorsPage } from "./errors.ts";
import { metricsPage } from "./metrics.ts";

/** Text by the name of its file in `docs/reference`. */
export async function generatedPages(): Promise<Readonly<Record<string, string>>> {
  return {
    "command-line.md": await commandLinePage(),
    "configuration.md": configurationPage(),
    "errors.md": errorsPage(),
    "metrics.md": await metricsPage(),
  };
}

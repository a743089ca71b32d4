import { actionServicePage } from "./action-service.ts";
import { commandLinePage } from "./command-line.ts";
import { commandManifestModule } from "./command-manifest.ts";
import { configMeaningsModule, configurationPage } from "./configuration.ts";
import { errorsPage } from "./errors.ts";
import { licencesPage } from "./licences.ts";
import { metricsPage } from "./metrics.ts";

/** Text by its path in the repository. */
export async function generatedPages(): Promise<Readonly<Record<string, string>>> {
  return {
    "docs/reference/command-line.md": await commandLinePage(),
    "docs/reference/configuration.md": configurationPage(),
    "docs/reference/action-service.md": actionServicePage(),
    "docs/reference/errors.md": errorsPage(),
    "docs/reference/metrics.md": await metricsPage(),
    "docs/reference/licences.md": licencesPage(),
    "packages/cli/src/generated/commands.ts": await commandManifestModule(),
    "packages/cli/src/generated/config-meanings.ts": configMeaningsModule(),
  };
}

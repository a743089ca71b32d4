import { ActionHostConfig, ActionServiceConfig } from "@treadle/actions/serve";
import { choicesOf, keysOf, source } from "./schema-keys.ts";

const service = [ActionServiceConfig, source("actions/src/service/service-config.ts"), "ActionServiceConfig"] as const;
const host = [ActionHostConfig, source("actions/src/service/host.ts"), "ActionHostConfig"] as const;

/** Every key of the action service and of its hosts. */
export function actionServicePage(): string {
  return [
    "# Action service",
    "",
    "The [README of the actions](../../packages/actions/README.md#as-a-service) says what the service does, with examples. Unknown keys",
    "are refused. Files are relative to the folder of the configuration. In key paths, `<name>` stands for a name of your own, and",
    "`<i>` for each item of a list.",
    "",
    "## The service",
    "",
    "The file of `npx treadle actions serve <file>`. Without a file, all keys have their defaults. A section or a key without a default",
    "is absent then, and what it is for is off.",
    "",
    keysOf(...service),
    ...choicesOf(...service).flatMap(({ key, type, table }) => [
      "",
      `### \`${key}\` of type ${type}`,
      "",
      `With \`type: ${type}\`:`,
      "",
      table,
    ]),
    "",
    "## A host",
    "",
    "The file of `npx treadle actions host <file>`, on each machine that `hosts` names.",
    "",
    keysOf(...host),
    "",
  ].join("\n");
}

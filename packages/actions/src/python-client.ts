import { pythonPackageFolder } from "@treadle/contracts/package-folder";

/** The Python package `treadle`, the client of the action service, which `pip install` takes. */
export const clientPackageFolder = (): string => pythonPackageFolder(import.meta.url, "treadle");

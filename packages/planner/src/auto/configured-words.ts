/** What is said of a problem's wishes, in the words of the configuration that they come from. Pure. */

/** Where `placement.wishes` has another key than the problem. Names of components are in quotes, whatever they are. */
const keys: Readonly<Record<string, string>> = { useAll: "useAllDevices" };

export const inConfiguredWords = (sentence: string): string =>
  sentence.replaceAll(/'[^']*'|\w+/g, (word) => (Object.hasOwn(keys, word) ? keys[word]! : word));

export { type NearestPlacement, resolvePlacement } from "./placement.ts";
export { type PlacementExpression, parsePlacement } from "./placement-grammar.ts";
export { PlacementComponent, PlacementInput } from "./placement-input.ts";

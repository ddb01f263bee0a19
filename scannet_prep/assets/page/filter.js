/** Filter and order of the scenes of a server. The query of an address stores them. */

/** The orders by name: what is compared, and whether the largest comes first. */
const ORDERS = new Map([
  ["id", { title: "scene id", key: (scene) => scene.id, isDescending: false }],
  ["largest", { title: "most vertices", key: (scene) => scene.vertices, isDescending: true }],
  ["smallest", { title: "fewest vertices", key: (scene) => scene.vertices, isDescending: false }],
  ["most-labeled", { title: "most labeled", key: (scene) => scene.labeled, isDescending: true }],
  ["least-labeled", { title: "least labeled", key: (scene) => scene.labeled, isDescending: false }],
  ["most-classes", { title: "most classes", key: (scene) => scene.classCount, isDescending: true }],
  ["fewest-classes", { title: "fewest classes", key: (scene) => scene.classCount, isDescending: false }],
]);
/** The orders of predicted scenes, which need scores. */
const SCORE_ORDERS = new Map([
  ["worst", { title: "worst", key: (scene, scores) => scores[scene.id], isDescending: false }],
  ["best", { title: "best", key: (scene, scores) => scores[scene.id], isDescending: true }],
]);

/** Read a filter from a query, with an empty text for each condition that is missing. */
function readFilter(query) {
  const words = new URLSearchParams(query);
  const filter = {};
  for (const name of ["search", "split", "class", "sort"]) filter[name] = words.get(name) ?? "";
  return filter;
}

/** Write a filter as a query; empty if it has no conditions. */
function writeFilter(filter) {
  const words = new URLSearchParams(Object.entries(filter).filter(([, value]) => value));
  const query = String(words);
  return query && `?${query}`;
}

/** Return the scenes that match a filter, in its order. Scenes without the compared number come last. */
function filterScenes({ scenes, classNames }, filter, scores) {
  const search = filter.search.trim().toLowerCase();
  const classNumber = classNames.indexOf(filter.class);
  const matching = scenes.filter((scene) => {
    const hasClass = filter.class === "" || scene.classes.includes(classNumber);
    const hasSplit = filter.split === "" || scene.split === filter.split;
    return hasClass && hasSplit && scene.id.toLowerCase().includes(search);
  });
  const order = ORDERS.get(filter.sort) ?? SCORE_ORDERS.get(filter.sort);
  if (!order) return matching;
  const isMissing = (key) => key === null || key === undefined;
  const compare = (first, second) => {
    const keys = [order.key(first, scores), order.key(second, scores)];
    if (keys.some(isMissing)) return isMissing(keys[0]) - isMissing(keys[1]);
    const [low, high] = order.isDescending ? keys.reverse() : keys;
    if (low === high) return 0;
    return low < high ? -1 : 1;
  };
  return matching.sort(compare);
}

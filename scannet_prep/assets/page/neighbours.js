/** The next and the previous scene of the list that a served page was opened from. */

class Neighbours {
  #scenes = [];
  #index = -1;

  /** @param {string} sceneId the scene of the page */
  constructor(sceneId) {
    this.sceneId = sceneId;
  }

  /** Request the list, with the filter and the order in the query of the page. */
  async load() {
    const filter = readFilter(location.search);
    const needsScores = SCORE_ORDERS.has(filter.sort);
    const [list, { scores }] = await Promise.all([request("/scenes"), needsScores ? request("/scores") : { scores: {} }]);
    this.#scenes = filterScenes(list, filter, scores);
    this.#index = this.#scenes.findIndex((scene) => scene.id === this.sceneId);
  }

  /** The position in the list, such as `3 of 120`; empty if the scene is not in it. */
  get position() {
    return this.#index < 0 ? "" : `${this.#index + 1} of ${this.#scenes.length}`;
  }

  /** The address of the list, which shows this scene again. */
  get home() {
    return `/${location.search}#${this.sceneId}`;
  }

  /** Return the address of a scene some steps away, with the same filter; empty if there is none. */
  address(steps) {
    const scene = this.#index < 0 ? undefined : this.#scenes[this.#index + steps];
    return scene ? `/scene/${scene.id}${location.search}` : "";
  }
}

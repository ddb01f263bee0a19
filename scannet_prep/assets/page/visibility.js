/**
 * The categories that are hidden. They stay hidden in all colourings, and those that mean the same in all scenes, such as
 * classes, also in the next scene.
 */
class Visibility {
  #hidden = new Map(); // sets of names, by the name of a colouring that means the same in all scenes
  #hiddenInScenes = new Map(); // likewise, by the names of a scene and a colouring

  #names(scene, coloring) {
    const sets = coloring.isPerScene ? this.#hiddenInScenes : this.#hidden;
    const key = coloring.isPerScene ? `${scene.name} ${coloring.name}` : coloring.name;
    if (!sets.has(key)) sets.set(key, new Set());
    return sets.get(key);
  }

  /** What is hidden in all scenes, also in those without it: pairs of the name of a colouring and that of a category. */
  get inAllScenes() {
    return [...this.#hidden].flatMap(([coloring, names]) => [...names].map((name) => [coloring, name]));
  }

  /** Hide a category by name, whether the scene has it or not. */
  hideName(scene, coloring, name) {
    this.#names(scene, coloring).add(name);
  }

  /** Return the numbers of the hidden categories of a colouring. */
  hidden(scene, coloring) {
    const names = this.#names(scene, coloring);
    const numbers = [...coloring.categories.keys()];
    return new Set(numbers.filter((number) => names.has(coloring.categories[number].name)));
  }

  /** Set the numbers of the hidden categories; names that are not in this scene keep their state. */
  hide(scene, coloring, numbers) {
    const names = this.#names(scene, coloring);
    coloring.categories.forEach(({ name }, number) => {
      if (numbers.has(number)) names.add(name);
      else names.delete(name);
    });
  }

  /** Hide all categories of a colouring but one. */
  showOnly(scene, coloring, number) {
    const others = new Set(coloring.categories.keys());
    others.delete(number);
    this.hide(scene, coloring, others);
  }

  showAll() {
    this.#hidden.clear();
    this.#hiddenInScenes.clear();
  }

  /** Return the colourings of a scene that hide categories. */
  hiding(scene) {
    return scene.colorings.filter((coloring) => this.hidden(scene, coloring).size > 0);
  }

  /**
   * Find the state of each vertex.
   * @param {object[]} hiding the colourings whose hidden categories are hidden
   * @param {?{coloring: object, number: number}} group the selected category
   * @returns {Promise<?Uint8Array>} (V,), 1 for shown, and 2 more for selected; null if all are shown and none is selected
   */
  async states(scene, hiding, group) {
    if (!hiding.length && !group) return null;
    const states = new Uint8Array(scene.vertices).fill(1);
    for (const coloring of hiding) {
      const values = await scene.values(coloring);
      const isHidden = new Uint8Array(coloring.categories.length);
      for (const number of this.hidden(scene, coloring)) isHidden[number] = 1;
      for (let vertex = 0; vertex < states.length; vertex++) {
        if (isHidden[values[vertex]]) states[vertex] = 0;
      }
    }
    if (group) {
      const values = await scene.values(group.coloring);
      for (let vertex = 0; vertex < states.length; vertex++) {
        if (values[vertex] === group.number) states[vertex] |= 2;
      }
    }
    return states;
  }
}

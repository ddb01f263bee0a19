/**
 * The categories that are hidden. They stay hidden in all colourings, and those that mean the same in all scenes, such as
 * classes, also in the next scene.
 */
class Visibility {
  #hidden = new Map(); // sets of names, by colouring

  #names(scene, coloring) {
    const key = coloring.isPerScene ? `${scene.name} ${coloring.name}` : coloring.name;
    if (!this.#hidden.has(key)) this.#hidden.set(key, new Set());
    return this.#hidden.get(key);
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

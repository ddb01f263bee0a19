/** The box outside of which nothing is drawn, with two handles for each axis. */
class ClipBox {
  #handles = []; // the inputs of both ends, by axis
  #outputs = [];

  /** @param {() => void} changed called after a handle has moved. */
  constructor(changed) {
    this.changed = changed;
    const panel = document.getElementById("clip-panel");
    for (const [axis, name] of ["x", "y", "z"].entries()) {
      const row = document.createElement("div");
      const track = document.createElement("span");
      const output = document.createElement("output");
      row.className = "range";
      track.className = "track";
      this.#handles.push(["from", "to"].map((end, side) => this.#makeHandle(`clip-${name}-${end}`, `${name}, ${end}`, axis, side)));
      this.#outputs.push(output);
      track.append(...this.#handles[axis]);
      row.append(name, track, output);
      panel.append(row);
    }
  }

  /** Set the limits of the handles to the box of a scene, and cut nothing off. */
  setScene(scene) {
    this.scene = scene;
    this.#handles.forEach((handles, axis) => {
      for (const handle of handles) handle.max = (Math.ceil(100 * scene.size[axis]) / 100).toFixed(2);
    });
    this.reset();
  }

  reset() {
    for (const [from, to] of this.#handles) {
      from.value = 0;
      to.value = to.max;
    }
    this.#describe();
  }

  /** Whether something is cut off. */
  get isUsed() {
    return this.#handles.some(([from, to]) => Number(from.value) > 0 || Number(to.value) < Number(to.max));
  }

  /** The ends of the box in metres: both of x, both of y, both of z. */
  get numbers() {
    return this.#handles.flatMap((handles, axis) => handles.map((handle) => this.scene.origin[axis] + Number(handle.value)));
  }

  set numbers(numbers) {
    numbers.forEach((number, i) => {
      const axis = i >> 1;
      this.#handles[axis][i & 1].value = number - this.scene.origin[axis];
    });
    this.#describe();
  }

  /** The lowest and the highest corner, in steps from the origin of the scene; infinite where nothing is cut off. */
  get corners() {
    const { step } = this.scene;
    return {
      low: this.#handles.map(([from]) => (Number(from.value) > 0 ? Number(from.value) / step : -Infinity)),
      high: this.#handles.map(([, to]) => (Number(to.value) < Number(to.max) ? Number(to.value) / step : Infinity)),
    };
  }

  #makeHandle(id, label, axis, side) {
    const handle = document.createElement("input");
    Object.assign(handle, { id, type: "range", min: 0, step: 0.01, ariaLabel: label });
    handle.addEventListener("input", () => {
      const [from, to] = this.#handles[axis];
      // A handle stops at the other one.
      if (Number(from.value) > Number(to.value)) handle.value = (side ? from : to).value;
      this.#describe();
      this.changed();
    });
    return handle;
  }

  #describe() {
    this.#handles.forEach(([from, to], axis) => {
      this.#outputs[axis].textContent = `${Number(from.value).toFixed(2)} to ${Number(to.value).toFixed(2)} m`;
    });
  }
}

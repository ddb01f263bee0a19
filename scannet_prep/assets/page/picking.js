/** Find the vertex at a pixel, by drawing numbers of vertices instead of colours into a small window around it. */

const PICK_REACH = 6; // pixels
const PICK_SIZE = 2 * PICK_REACH + 1;

class Picking {
  #pixels = new Uint8Array(4 * PICK_SIZE * PICK_SIZE);

  constructor(drawing) {
    const { gl } = drawing;
    this.drawing = drawing;
    this.target = gl.createFramebuffer();
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.target);
    for (const [format, attachment] of [
      [gl.RGBA8, gl.COLOR_ATTACHMENT0],
      [gl.DEPTH_COMPONENT24, gl.DEPTH_ATTACHMENT],
    ]) {
      const buffer = gl.createRenderbuffer();
      gl.bindRenderbuffer(gl.RENDERBUFFER, buffer);
      gl.renderbufferStorage(gl.RENDERBUFFER, format, PICK_SIZE, PICK_SIZE);
      gl.framebufferRenderbuffer(gl.FRAMEBUFFER, attachment, gl.RENDERBUFFER, buffer);
    }
  }

  /**
   * Return the vertex at a pixel, or the nearest one in the window; -1 if there is none.
   * Vertices of triangles are drawn in front of them; without a vertex in the window, it is a corner of the triangle.
   */
  find(x, y, camera, view) {
    const { drawing } = this;
    const { gl, canvas } = drawing;
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.target);
    gl.viewport(PICK_REACH - x, PICK_REACH - (canvas.height - 1 - y), canvas.width, canvas.height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    if (view.hasMesh && drawing.hasTriangles) {
      gl.enable(gl.POLYGON_OFFSET_FILL);
      gl.polygonOffset(4, 4);
      drawing.drawNumbers(camera, view, true);
      gl.disable(gl.POLYGON_OFFSET_FILL);
      drawing.drawNumbers(camera, { ...view, splatScale: 0 }, false);
    } else {
      drawing.drawNumbers(camera, view, false);
    }
    gl.readPixels(0, 0, PICK_SIZE, PICK_SIZE, gl.RGBA, gl.UNSIGNED_BYTE, this.#pixels);
    return this.#nearest();
  }

  #nearest() {
    let best = -1, bestDistance = Infinity;
    const number = (i) => this.#pixels[i] | (this.#pixels[i + 1] << 8) | (this.#pixels[i + 2] << 16);
    for (let row = 0; row < PICK_SIZE; row++) {
      for (let column = 0; column < PICK_SIZE; column++) {
        const i = 4 * (row * PICK_SIZE + column);
        const distance = (row - PICK_REACH) ** 2 + (column - PICK_REACH) ** 2;
        if (this.#pixels[i + 3] === 255 && distance < bestDistance) [best, bestDistance] = [number(i), distance];
      }
    }
    const center = 4 * (PICK_REACH * PICK_SIZE + PICK_REACH);
    return best < 0 && this.#pixels[center + 3] ? number(center) : best;
  }
}

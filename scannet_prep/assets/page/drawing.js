/** The drawing of a scene with WebGL2: its surfaces or round points, a metre grid, and numbers of vertices for picking. */

const PALETTE_WIDTH = 256;
// Rooms are smaller than 20 m, but a stray vertex may be anywhere.
const MAX_GRID_M = 1000;
// While the camera moves without a graphics card, at most this many points are drawn.
const DRAFT_POINTS = 25_000;
// The width of a pixel on the canvas, in pixels of a draft.
const DRAFT_SCALE = 0.5;
// WebGL limits the distance between two values of an attribute to 255 bytes, and a position takes 6.
const MAX_EVERY = 42;
const ATTRIBUTES = ["position", "color", "category", "normal", "state", "radius"];
const [POSITION, COLOR, CATEGORY, NORMAL, STATE, RADIUS_OF_DISC] = ATTRIBUTES.keys();
const AXIS_COLORS = [[0.9, 0.25, 0.25], [0.2, 0.7, 0.3], [0.3, 0.5, 1]];

/** A program of the graphics card. The browser compiles it beside the script, until it is used. */
class Program {
  #uniforms = null; // their locations by name

  constructor(gl, vertexText, fragmentText) {
    this.gl = gl;
    this.program = gl.createProgram();
    for (const [kind, text] of [[gl.VERTEX_SHADER, vertexText], [gl.FRAGMENT_SHADER, fragmentText]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      gl.attachShader(this.program, shader);
    }
    ATTRIBUTES.forEach((name, location) => gl.bindAttribLocation(this.program, location, name));
    gl.linkProgram(this.program);
  }

  /** Draw with this program from now on, and return the locations of its uniforms by name. */
  use() {
    this.#uniforms ??= this.#findUniforms();
    this.gl.useProgram(this.program);
    return this.#uniforms;
  }

  /** Wait until the program is compiled, and find its uniforms. */
  #findUniforms() {
    const { gl, program } = this;
    if (!gl.getProgramParameter(program, gl.LINK_STATUS) && !gl.isContextLost()) {
      throw new Error(gl.getProgramInfoLog(program));
    }
    const uniforms = {};
    for (let i = 0; i < gl.getProgramParameter(program, gl.ACTIVE_UNIFORMS); i++) {
      const { name } = gl.getActiveUniform(program, i);
      uniforms[name] = gl.getUniformLocation(program, name);
    }
    return uniforms;
  }
}

class Drawing {
  #vertexCount = 0;
  #cornerCount = 0;
  #lineCount = 0;
  #hasCategories = false;
  #palette = new Uint8Array(0); // of each category: red, green, blue, and the brightness without light
  #formats = new Map(); // of the attributes in use, by location
  #every = 1; // only every so many vertices are drawn as points
  #programs = new Map(); // of the scene
  #isSoftware = null;

  /** @throws {Error} The browser has no WebGL2. */
  constructor(canvas) {
    const gl = canvas.getContext("webgl2", { alpha: false, antialias: false, depth: false });
    if (!gl) throw new Error("no WebGL2");
    this.canvas = canvas;
    this.gl = gl;
    this.clipFromScene = new Float32Array(16);
    this.surfaceState = gl.createVertexArray();
    this.splatState = gl.createVertexArray();
    this.lineState = gl.createVertexArray();
    this.buffers = Object.fromEntries(
      [...ATTRIBUTES, "corners", "lines"].map((name) => [name, gl.createBuffer()]),
    );
    this.paletteTexture = gl.createTexture();
    gl.bindTexture(gl.TEXTURE_2D, this.paletteTexture);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.NEAREST);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.NEAREST);
    gl.vertexAttrib3f(NORMAL, 128, 128, 128);
    gl.vertexAttribI4ui(CATEGORY, 0, 0, 0, 0);
    gl.vertexAttribI4ui(STATE, 1, 0, 0, 0);
    gl.enable(gl.DEPTH_TEST);
    this.finishing = new Finishing(gl);
    this.lines = new Program(gl, LINE_VERTEX_SHADER, LINE_SHADER);
    // One of both is needed as soon as a scene is unpacked.
    for (const hasMesh of [true, false]) this.#program("colors", hasMesh);
  }

  /** Whether the browser draws without a graphics card. */
  get isSoftware() {
    this.#isSoftware ??= isSoftware(this.gl);
    return this.#isSoftware;
  }

  get hasTriangles() {
    return this.#cornerCount > 0;
  }

  /** Set the arrays of a scene; `normals` and `corners` may be null. */
  setScene(scene, positions, normals, corners) {
    const { gl } = this;
    this.scene = scene;
    this.positions = positions;
    this.#vertexCount = positions.length / 3;
    this.#cornerCount = corners ? corners.length : 0;
    this.#setAttribute(POSITION, positions, 3, gl.UNSIGNED_SHORT);
    this.#setAttribute(NORMAL, normals, 3, gl.UNSIGNED_BYTE);
    this.#setAttribute(STATE, null);
    this.#setAttribute(RADIUS_OF_DISC, null);
    gl.bindVertexArray(this.surfaceState);
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, this.buffers.corners);
    if (corners) gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, corners, gl.STATIC_DRAW);
    this.#setLines(scene);
  }

  /** Set the colours, or the indices of categories. */
  setColoring(values, categories) {
    const { gl } = this;
    this.#hasCategories = categories.length > 0;
    this.#setAttribute(COLOR, this.#hasCategories ? null : values, 3, gl.UNSIGNED_BYTE, true);
    this.#setAttribute(CATEGORY, this.#hasCategories ? Uint32Array.from(values) : null, 1, gl.UNSIGNED_INT);
    const height = Math.max(1, Math.ceil(categories.length / PALETTE_WIDTH));
    this.#palette = new Uint8Array(4 * PALETTE_WIDTH * height);
    gl.bindTexture(gl.TEXTURE_2D, this.paletteTexture);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA8, PALETTE_WIDTH, height, 0, gl.RGBA, gl.UNSIGNED_BYTE, null);
    categories.forEach(({ ambient }, i) => (this.#palette[4 * i + 3] = Math.ceil(255 * ambient)));
    this.setColors(categories.map(({ color }) => color));
  }

  /** Change the colours of the categories, `#rrggbb` each. */
  setColors(colors) {
    const { gl } = this;
    colors.forEach((color, i) => {
      for (let channel = 0; channel < 3; channel++) {
        this.#palette[4 * i + channel] = Number.parseInt(color.slice(2 * channel + 1, 2 * channel + 3), 16);
      }
    });
    const height = this.#palette.length / 4 / PALETTE_WIDTH;
    gl.bindTexture(gl.TEXTURE_2D, this.paletteTexture);
    gl.texSubImage2D(gl.TEXTURE_2D, 0, 0, 0, PALETTE_WIDTH, height, gl.RGBA, gl.UNSIGNED_BYTE, this.#palette);
  }

  /** Set the states of all vertices, uint8 (V,): 1 if it is shown, and 2 more if it is selected; null if all are shown. */
  setStates(states) {
    this.#setAttribute(STATE, states, 1, this.gl.UNSIGNED_BYTE);
  }

  /**
   * Draw the picture. `view`: splatScale, metrePixels, low, high, light, hasBacks, hasMesh, hasGrid,
   * hasEdges, hasOutline, isDraft, pixelRatio, background.
   */
  draw(camera, view) {
    const { gl, canvas, finishing } = this;
    const hasMesh = view.hasMesh && this.hasTriangles;
    // Discs have no smooth rims, and a draft has to be fast.
    const scale = view.isDraft ? DRAFT_SCALE : 1;
    const isSmooth = hasMesh && !view.isDraft && devicePixelRatio < 2;
    finishing.begin(Math.ceil(scale * canvas.width), Math.ceil(scale * canvas.height), isSmooth);
    gl.clearColor(...view.background, 0);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    this.#drawScene("colors", camera, view, hasMesh);
    if (view.hasGrid) this.#drawLines(camera);
    finishing.finish(camera, view, canvas);
  }

  /** Draw the numbers of vertices: points, or triangles in `hasMesh`. */
  drawNumbers(camera, view, hasMesh) {
    this.#drawScene("numbers", camera, { ...view, isDraft: false }, hasMesh);
  }

  #drawScene(kind, camera, view, hasMesh) {
    const { gl } = this;
    const uniforms = this.#program(kind, hasMesh).use();
    gl.uniformMatrix4fv(uniforms.clipFromGrid, false, camera.clipFromGrid);
    gl.uniform1i(uniforms.hasCategories, this.#hasCategories ? 1 : 0);
    gl.uniform3fv(uniforms.low, view.low);
    gl.uniform3fv(uniforms.high, view.high);
    gl.uniform3fv(uniforms.light, view.light);
    if (hasMesh) {
      gl.bindVertexArray(this.surfaceState);
      if (!view.hasBacks) gl.enable(gl.CULL_FACE);
      gl.drawElements(gl.TRIANGLES, this.#cornerCount, gl.UNSIGNED_INT, 0);
      gl.disable(gl.CULL_FACE);
      return;
    }
    const every = view.isDraft ? Math.min(MAX_EVERY, Math.ceil(this.#vertexCount / DRAFT_POINTS)) : 1;
    this.#pointAtEvery(every);
    gl.uniform1i(uniforms.isPoints, 1);
    gl.uniform1i(uniforms.hasBacks, view.hasBacks ? 1 : 0);
    gl.uniform4fv(uniforms.eye, camera.gridEye);
    gl.uniform1f(uniforms.splatScale, view.splatScale * Math.sqrt(every));
    gl.uniform1f(uniforms.metrePixels, view.metrePixels * (view.isDraft ? DRAFT_SCALE : 1));
    gl.uniform1f(uniforms.step, this.scene.step);
    gl.uniform1f(uniforms.depthSlope, camera.depthSlope);
    for (const name of ["right", "up", "back"]) gl.uniform3fv(uniforms[name], camera[name]);
    gl.drawArrays(gl.POINTS, 0, Math.floor(this.#vertexCount / every));
  }

  /** The program that draws colours or numbers, on surfaces or points; made when it is first asked for. */
  #program(kind, hasMesh) {
    const key = `${kind} ${hasMesh}`;
    if (!this.#programs.has(key)) {
      const vertexText = hasMesh ? SURFACE_SHADER : SPLAT_SHADER;
      const fragmentText = (hasMesh ? SURFACE_FRAGMENT : SPLAT_FRAGMENT) + (kind === "colors" ? COLOR_MAIN : NUMBER_MAIN);
      this.#programs.set(key, new Program(this.gl, vertexText, fragmentText));
    }
    return this.#programs.get(key);
  }

  /** Draw the lines over the scene, but not into its depths, so that they cast no shadow. */
  #drawLines(camera) {
    const { gl } = this;
    const uniforms = this.lines.use();
    this.clipFromScene.set(camera.clipFromScene);
    gl.uniformMatrix4fv(uniforms.clipFromScene, false, this.clipFromScene);
    gl.bindVertexArray(this.lineState);
    gl.depthMask(false);
    gl.drawArrays(gl.LINES, 0, this.#lineCount);
    gl.depthMask(true);
  }

  /** Make points take their attributes from every so many vertices: neighbours in the arrays are neighbours in the room. */
  #pointAtEvery(every) {
    const { gl } = this;
    // Scenes with triangles need no sizes of points until points are drawn.
    if (!this.#formats.has(RADIUS_OF_DISC)) {
      const radii = estimateRadii(this.positions, this.scene.pointSize / 2 / this.scene.step);
      this.#setAttribute(RADIUS_OF_DISC, radii, 1, gl.UNSIGNED_SHORT);
    }
    gl.bindVertexArray(this.splatState);
    if (every === this.#every) return;
    this.#every = every;
    for (const location of this.#formats.keys()) this.#point(location, every);
  }

  /** Set the grid of metres on the floor, unless it is too large, and the axes of one metre at its corner. */
  #setLines({ origin, size, floor }) {
    const { gl } = this;
    const low = [0, 1].map((axis) => Math.floor(origin[axis]));
    const high = [0, 1].map((axis) => Math.ceil(origin[axis] + size[axis]));
    const numbers = [];
    const add = (from, to, color) => numbers.push(...from, ...color, ...to, ...color);
    const isRoom = Math.max(...size) <= MAX_GRID_M;
    for (let x = low[0]; isRoom && x <= high[0]; x++) add([x, low[1], floor], [x, high[1], floor], [0.5, 0.5, 0.5]);
    for (let y = low[1]; isRoom && y <= high[1]; y++) add([low[0], y, floor], [high[0], y, floor], [0.5, 0.5, 0.5]);
    for (let axis = 0; axis < 3; axis++) {
      const start = [low[0], low[1], floor + 0.002];
      add(start, start.map((at, i) => at + (i === axis ? 1 : 0)), AXIS_COLORS[axis]);
    }
    this.#lineCount = numbers.length / 6;
    gl.bindVertexArray(this.lineState);
    this.#fill("lines", new Float32Array(numbers));
    gl.enableVertexAttribArray(POSITION);
    gl.vertexAttribPointer(POSITION, 3, gl.FLOAT, false, 24, 0);
    gl.enableVertexAttribArray(COLOR);
    gl.vertexAttribPointer(COLOR, 3, gl.FLOAT, false, 24, 12);
  }

  /** Set an attribute of the vertices; null for the value for all vertices that the constructor has set. */
  #setAttribute(location, data, columns, type, isScaled = false) {
    const { gl } = this;
    if (data) {
      this.#fill(ATTRIBUTES[location], data);
      this.#formats.set(location, { columns, type, isScaled, bytes: columns * data.BYTES_PER_ELEMENT });
    } else this.#formats.delete(location);
    for (const [state, every] of [[this.surfaceState, 1], [this.splatState, this.#every]]) {
      gl.bindVertexArray(state);
      if (data) {
        gl.enableVertexAttribArray(location);
        this.#point(location, every);
      } else gl.disableVertexAttribArray(location);
    }
  }

  #point(location, every) {
    const { gl } = this;
    const { columns, type, isScaled, bytes } = this.#formats.get(location);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[ATTRIBUTES[location]]);
    if (columns === 1) gl.vertexAttribIPointer(location, 1, type, every * bytes, 0);
    else gl.vertexAttribPointer(location, columns, type, isScaled, every * bytes, 0);
  }

  #fill(name, data) {
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, this.buffers[name]);
    this.gl.bufferData(this.gl.ARRAY_BUFFER, data, this.gl.STATIC_DRAW);
  }
}

/** Whether the browser draws without a graphics card. */
function isSoftware(gl) {
  let name = gl.getParameter(gl.RENDERER);
  // Chromium and Safari name the graphics card only in an extension, about which Firefox warns.
  const extension = name.startsWith("WebKit") ? gl.getExtension("WEBGL_debug_renderer_info") : null;
  if (extension) name = gl.getParameter(extension.UNMASKED_RENDERER_WEBGL);
  return /swiftshader|llvmpipe|softpipe|software|basic render/i.test(name);
}

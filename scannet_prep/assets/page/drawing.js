/** The drawing of a scene with WebGL2: its vertices or triangles, a metre grid, and numbers of vertices for picking. */

const VERTEX_SHADER = `#version 300 es
precision highp float;
precision highp int;
uniform mat4 clipFromGrid;
uniform bool isPoints, hasCategories, hasLight, hasBacks;
uniform float pointScale, ambient, ceiling;
uniform vec3 eye;  // in the frame of position
uniform vec3 light;  // the direction towards the light
uniform highp sampler2D palette;
in vec3 position;
in vec3 color;
in uint category;
in vec3 normal;  // integers, with 128 for 0
out vec3 shade;
out float brightness, below;
flat out vec3 categoryShade;
flat out float isOn;
flat out int vertex;

void main() {
  ivec2 texel = ivec2(category & 255u, category >> 8);
  vec4 entry = hasCategories ? texelFetch(palette, texel, 0) : vec4(color, 1.0);
  vec3 unit = (normal - 128.0) / 127.5;
  bool hasNormal = unit != vec3(0.0);
  brightness = hasLight && hasNormal ? ambient + (1.0 - ambient) * clamp(dot(unit, light), 0.0, 1.0) : 1.0;
  shade = entry.rgb;
  categoryShade = entry.rgb;
  isOn = entry.a;
  below = position.z <= ceiling ? 1.0 : 0.0;
  vertex = gl_VertexID;
  gl_Position = clipFromGrid * vec4(position, 1.0);
  gl_PointSize = clamp(ceil(pointScale / gl_Position.w), 1.0, 64.0);
  bool isBack = !hasBacks && dot(eye - position, unit) < 0.0;
  // Move hidden points out of the picture.
  if (isPoints && (isBack || isOn * below < 0.5)) gl_Position = vec4(2.0, 2.0, 2.0, 1.0);
}`;

// A triangle is hidden if one of its corners is above the ceiling. Its class is that of one corner, so that its colour is
// in the legend and not a mixture.
const COLOR_SHADER = `#version 300 es
precision highp float;
uniform bool hasCategories;
in vec3 shade;
in float brightness, below;
flat in vec3 categoryShade;
flat in float isOn;
out vec4 result;

void main() {
  if (isOn < 0.5 || below < 0.999) discard;
  result = vec4((hasCategories ? categoryShade : shade) * brightness, 1.0);
}`;

const NUMBER_SHADER = `#version 300 es
precision highp float;
precision highp int;
uniform bool isPoints;
in float below;
flat in float isOn;
flat in int vertex;
out vec4 result;

void main() {
  if (isOn < 0.5 || below < 0.999) discard;
  ivec3 bytes = ivec3(vertex, vertex >> 8, vertex >> 16) & 255;
  result = vec4(vec3(bytes) / 255.0, isPoints ? 1.0 : 0.5);
}`;

const LINE_VERTEX_SHADER = `#version 300 es
uniform mat4 clipFromScene;
in vec3 position;
in vec3 color;
out vec3 shade;

void main() {
  shade = color;
  gl_Position = clipFromScene * vec4(position, 1.0);
}`;

const LINE_SHADER = `#version 300 es
precision mediump float;
in vec3 shade;
out vec4 result;

void main() {
  result = vec4(shade, 1.0);
}`;

const PALETTE_WIDTH = 256;
// Rooms are smaller than 20 m, but a stray vertex may be anywhere.
const MAX_GRID_M = 1000;
const ATTRIBUTES = ["position", "color", "category", "normal"];
const [POSITION, COLOR, CATEGORY, NORMAL] = ATTRIBUTES.keys();
const AXIS_COLORS = [[0.9, 0.25, 0.25], [0.2, 0.7, 0.3], [0.3, 0.5, 1]];

/** Compile a program, and find its uniforms by name. */
function makeProgram(gl, vertexText, fragmentText) {
  const program = gl.createProgram();
  for (const [kind, text] of [[gl.VERTEX_SHADER, vertexText], [gl.FRAGMENT_SHADER, fragmentText]]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, text);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  ATTRIBUTES.forEach((name, location) => gl.bindAttribLocation(program, location, name));
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS) && !gl.isContextLost()) {
    throw new Error(gl.getProgramInfoLog(program));
  }
  const uniforms = {};
  for (let i = 0; i < gl.getProgramParameter(program, gl.ACTIVE_UNIFORMS); i++) {
    const { name } = gl.getActiveUniform(program, i);
    uniforms[name] = gl.getUniformLocation(program, name);
  }
  return { program, uniforms };
}

class Drawing {
  #vertexCount = 0;
  #cornerCount = 0;
  #lineCount = 0;
  #hasCategories = false;
  #numbers = null;
  #lines = null;
  #palette = new Uint8Array(0);

  /** @throws {Error} The browser has no WebGL2. */
  constructor(canvas) {
    const gl = canvas.getContext("webgl2", { alpha: false, antialias: devicePixelRatio < 2 });
    if (!gl) throw new Error("no WebGL2");
    this.canvas = canvas;
    this.gl = gl;
    this.colors = makeProgram(gl, VERTEX_SHADER, COLOR_SHADER);
    this.clipFromScene = new Float32Array(16);
    this.sceneState = gl.createVertexArray();
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
    gl.enable(gl.DEPTH_TEST);
  }

  /** The program that draws numbers of vertices, made on its first use after the first picture. */
  get numbers() {
    return (this.#numbers ??= makeProgram(this.gl, VERTEX_SHADER, NUMBER_SHADER));
  }

  get lines() {
    return (this.#lines ??= makeProgram(this.gl, LINE_VERTEX_SHADER, LINE_SHADER));
  }

  get hasTriangles() {
    return this.#cornerCount > 0;
  }

  /** Set the arrays of a scene; `normals` and `corners` may be null. */
  setScene(scene, positions, normals, corners) {
    const { gl } = this;
    this.#vertexCount = positions.length / 3;
    this.#cornerCount = corners ? corners.length : 0;
    gl.bindVertexArray(this.sceneState);
    this.#setAttribute(POSITION, positions, gl.UNSIGNED_SHORT);
    this.#setAttribute(NORMAL, normals, gl.UNSIGNED_BYTE);
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, this.buffers.corners);
    if (corners) gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, corners, gl.STATIC_DRAW);
    this.#setLines(scene);
  }

  /** Set the colours, or the indices of categories. */
  setColoring(values, categories) {
    const { gl } = this;
    this.#hasCategories = categories.length > 0;
    gl.bindVertexArray(this.sceneState);
    this.#setAttribute(COLOR, this.#hasCategories ? null : values, gl.UNSIGNED_BYTE, true);
    this.#setAttribute(CATEGORY, this.#hasCategories ? Uint32Array.from(values) : null, gl.UNSIGNED_INT);
    const height = Math.max(1, Math.ceil(categories.length / PALETTE_WIDTH));
    this.#palette = new Uint8Array(4 * PALETTE_WIDTH * height);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA8, PALETTE_WIDTH, height, 0, gl.RGBA, gl.UNSIGNED_BYTE, null);
    this.setColors(categories.map(({ color }) => color));
    this.setHidden(new Set());
  }

  /** Change the colours of the categories, `#rrggbb` each; what is hidden stays hidden. */
  setColors(colors) {
    const { gl } = this;
    colors.forEach((color, i) => {
      for (let channel = 0; channel < 3; channel++) {
        this.#palette[4 * i + channel] = Number.parseInt(color.slice(2 * channel + 1, 2 * channel + 3), 16);
      }
    });
    const height = this.#palette.length / 4 / PALETTE_WIDTH;
    gl.texSubImage2D(gl.TEXTURE_2D, 0, 0, 0, PALETTE_WIDTH, height, gl.RGBA, gl.UNSIGNED_BYTE, this.#palette);
  }

  /** Hide the categories with these numbers. */
  setHidden(hidden) {
    const { gl } = this;
    const height = this.#palette.length / 4 / PALETTE_WIDTH;
    for (let i = 0; 4 * i < this.#palette.length; i++) this.#palette[4 * i + 3] = hidden.has(i) ? 0 : 255;
    gl.texSubImage2D(gl.TEXTURE_2D, 0, 0, 0, PALETTE_WIDTH, height, gl.RGBA, gl.UNSIGNED_BYTE, this.#palette);
  }

  /** Draw the picture. `view`: pointScale, ceiling, light, ambient, hasLight, hasBacks, hasMesh, hasGrid, background. */
  draw(camera, view) {
    const { gl, canvas } = this;
    gl.bindFramebuffer(gl.FRAMEBUFFER, null);
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clearColor(view.background[0], view.background[1], view.background[2], 1);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    this.drawScene(this.colors, camera, view, view.hasMesh && this.hasTriangles);
    if (view.hasGrid) {
      gl.useProgram(this.lines.program);
      this.clipFromScene.set(camera.clipFromScene);
      gl.uniformMatrix4fv(this.lines.uniforms.clipFromScene, false, this.clipFromScene);
      gl.bindVertexArray(this.lineState);
      gl.drawArrays(gl.LINES, 0, this.#lineCount);
    }
  }

  /** Draw triangles or points with one of the two programs. */
  drawScene({ program, uniforms }, camera, view, hasMesh) {
    const { gl } = this;
    gl.useProgram(program);
    gl.bindVertexArray(this.sceneState);
    gl.uniformMatrix4fv(uniforms.clipFromGrid, false, camera.clipFromGrid);
    gl.uniform1i(uniforms.isPoints, hasMesh ? 0 : 1);
    gl.uniform1i(uniforms.hasCategories, this.#hasCategories ? 1 : 0);
    gl.uniform1f(uniforms.pointScale, view.pointScale);
    gl.uniform1f(uniforms.ceiling, view.ceiling);
    gl.uniform1i(uniforms.hasLight, view.hasLight ? 1 : 0);
    gl.uniform1f(uniforms.ambient, view.ambient);
    gl.uniform3fv(uniforms.light, view.light);
    gl.uniform1i(uniforms.hasBacks, view.hasBacks ? 1 : 0);
    gl.uniform3fv(uniforms.eye, camera.gridEye);
    if (!hasMesh) {
      gl.drawArrays(gl.POINTS, 0, this.#vertexCount);
      return;
    }
    if (!view.hasBacks) gl.enable(gl.CULL_FACE);
    gl.drawElements(gl.TRIANGLES, this.#cornerCount, gl.UNSIGNED_INT, 0);
    gl.disable(gl.CULL_FACE);
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
  #setAttribute(location, data, type, isScaled = false) {
    const { gl } = this;
    if (!data) {
      gl.disableVertexAttribArray(location);
      return;
    }
    this.#fill(ATTRIBUTES[location], data);
    gl.enableVertexAttribArray(location);
    if (type === gl.UNSIGNED_INT) gl.vertexAttribIPointer(location, 1, type, 0, 0);
    else gl.vertexAttribPointer(location, 3, type, isScaled, 0, 0);
  }

  #fill(name, data) {
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, this.buffers[name]);
    this.gl.bufferData(this.gl.ARRAY_BUFFER, data, this.gl.STATIC_DRAW);
  }
}

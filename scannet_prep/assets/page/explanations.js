/** Tables that explain a colouring: scores, and what was confused with what. */

const NUMBER = /^[\d.,]+$/;

/** Make a table. Its texts come from files, so they are set as text and never as markup. */
function makeExplanation({ title, columns, rows, category }) {
  const table = Object.assign(document.createElement("table"), { className: "explanation" });
  // The line above has the name of the category.
  if (title !== category) table.createCaption().textContent = title;
  const isNumber = columns.map((_, column) => rows.some((row) => NUMBER.test(row[column])));
  const addCells = (row, kind, texts) => {
    texts.forEach((text, column) => {
      const cell = Object.assign(document.createElement(kind), { textContent: text });
      if (kind === "th") cell.scope = "col";
      if (isNumber[column]) cell.className = "number";
      row.append(cell);
    });
  };
  addCells(table.createTHead().insertRow(), "th", columns);
  const body = table.createTBody();
  for (const row of rows) addCells(body.insertRow(), "td", row);
  return table;
}

"use strict";
// Sorts a table by the column whose header is pressed: numbers as numbers, other text in reading order. Cells without a
// value stay last in both directions, and equal ones keep their order.
(() => {
  const collator = new Intl.Collator(undefined, { numeric: true });

  function compare(first, second, isNumber) {
    return isNumber ? Number(first) - Number(second) : collator.compare(first, second);
  }

  function sort(header) {
    const table = header.closest("table");
    const index = header.cellIndex;
    const isNumber = header.dataset.kind === "number";
    const direction = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const body = table.tBodies[0];
    const keyed = [...body.rows].map((row) => [row.cells[index].dataset.key, row]);
    keyed.sort(([first], [second]) => {
      if (first === "" || second === "") {
        return Number(first === "") - Number(second === "");
      }
      return direction * compare(first, second, isNumber);
    });
    body.append(...keyed.map(([, row]) => row));
    for (const other of table.tHead.rows[0].cells) {
      other.setAttribute("aria-sort", "none");
    }
    header.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
  }

  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => sort(button.closest("th")));
  }
})();

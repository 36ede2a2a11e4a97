package commands

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// tableColumns is how many columns a table has at most that is written elsewhere than to a terminal.
const tableColumns = 120

// tableGap is the space between two of its columns.
const tableGap = 2

// workersColumns are the columns of the table of workers.
var workersColumns = []string{"ID", "ROLE", "STATE", "ADDRESS", "MODEL", "DIGEST", "RUNNING", "WAITING", "BLOCKS FREE", "IN FLIGHT", "AGE"}

// leftOut are the columns that a table does without if it is too wide, the first ones first.
var leftOut = [][]string{{"ADDRESS"}, {"RUNNING", "WAITING"}, {"MODEL"}, {"DIGEST"}, {"AGE"}}

// writeWorkersTable writes a line for each worker, and to notes what it lacks to fit a terminal.
func writeWorkersTable(w, notes io.Writer, views []*controlv1.WorkerView) error {
	rows := [][]string{workersColumns}
	for _, view := range views {
		rows = append(rows, workerCells(view))
	}
	columns, _ := sizeOf(w)
	return writeFitted(w, notes, rows, leftOut, columns)
}

// sizeOf is how many columns and lines a terminal has; of what is none, tableColumns and 0.
func sizeOf(w io.Writer) (columns, lines int) {
	if columns, lines := terminalSize(w); columns > 0 {
		return columns, lines
	}
	return tableColumns, 0
}

// writeFitted writes rows, of which the first has the names of the columns and each begins with an
// id, and to notes which columns of leftOut it leaves out to fit the width.
func writeFitted(w, notes io.Writer, rows, leftOut [][]string, width int) error {
	columns := make([][]string, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			columns[i] = append(columns[i], cell)
		}
	}
	var without []string
	for _, names := range leftOut {
		if widthOf(columns) <= width {
			break
		}
		columns = slices.DeleteFunc(columns, func(c []string) bool { return slices.Contains(names, c[0]) })
		without = append(without, names...)
	}
	if over := widthOf(columns) - width; over > 0 {
		most := max(widthOf(columns[:1])-over, 1)
		for i, id := range columns[0] {
			columns[0][i] = shortened(id, most)
		}
	}
	lines := make([][]string, len(rows))
	for i := range lines {
		for j := range columns {
			lines[i] = append(lines[i], columns[j][i])
		}
	}
	if err := writeTable(w, lines); err != nil || without == nil {
		return err
	}
	_, err := fmt.Fprintf(notes, "left out to fit: %s; --json has all\n", strings.Join(without, ", "))
	return err
}

func writeTable(w io.Writer, rows [][]string) error {
	table := tabwriter.NewWriter(w, 0, 0, tableGap, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	return table.Flush()
}

// workerCells are a worker's cells of all columns.
func workerCells(view *controlv1.WorkerView) []string {
	worker := workerOf(view)
	running, waiting, blocks, age := "-", "-", "-", "-"
	if l := worker.Load; l != nil {
		running, waiting = fmt.Sprint(l.Running), fmt.Sprint(l.Waiting)
		blocks = fmt.Sprintf("%d/%d", l.BlocksFree, l.BlocksTotal)
		age = view.GetLoadAge().AsDuration().Round(100 * time.Millisecond).String()
	}
	address := "-"
	if len(worker.Addresses) > 0 {
		address = worker.Addresses[0]
	}
	return []string{
		worker.ID, worker.Role, tableState(worker), address, cmp.Or(worker.Model, "-"), cmp.Or(shortDigest(worker.ModelDigest), "-"),
		running, waiting, blocks, fmt.Sprint(worker.InFlight), age,
	}
}

// tableState is the state with what is wrong beside it.
func tableState(w workerJSON) string {
	switch {
	case !w.Connected:
		return w.State + ", no connection"
	case !w.Registered:
		return w.State + ", not in etcd"
	case w.Excluded != "":
		return w.State + ", excluded"
	}
	return w.State
}

// widthOf is how wide columns are beside each other.
func widthOf(columns [][]string) int {
	width := tableGap * (len(columns) - 1)
	for _, column := range columns {
		widest := 0
		for _, cell := range column {
			widest = max(widest, utf8.RuneCountInString(cell))
		}
		width += widest
	}
	return width
}

// shortened is text of at most that many characters, without its middle if it has more: names
// of workers differ at their ends.
func shortened(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	head := (most - 1) / 2
	return string(runes[:head]) + "…" + string(runes[len(runes)-(most-1-head):])
}

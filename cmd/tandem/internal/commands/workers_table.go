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

// workersWidth is how many columns of a terminal the table of workers has at most.
const workersWidth = 120

// tableGap is the space between two of its columns.
const tableGap = 2

// workersColumns are the columns of the table of workers.
var workersColumns = []string{"ID", "ROLE", "STATE", "ADDRESS", "MODEL", "DIGEST", "RUNNING", "WAITING", "BLOCKS FREE", "IN FLIGHT", "AGE"}

// leftOut are the columns that a table does without if it is too wide, the first ones first.
var leftOut = [][]string{{"ADDRESS"}, {"RUNNING", "WAITING"}, {"MODEL"}, {"DIGEST"}, {"AGE"}}

// writeWorkersTable writes a line for each worker, and to notes what it lacks to fit a terminal.
func writeWorkersTable(w, notes io.Writer, views []*controlv1.WorkerView) error {
	columns := make([][]string, len(workersColumns))
	for i, name := range workersColumns {
		columns[i] = []string{name}
	}
	for _, view := range views {
		for i, cell := range workerCells(view) {
			columns[i] = append(columns[i], cell)
		}
	}
	var without []string
	for _, names := range leftOut {
		if widthOf(columns) <= workersWidth {
			break
		}
		columns = slices.DeleteFunc(columns, func(c []string) bool { return slices.Contains(names, c[0]) })
		without = append(without, names...)
	}
	if over := widthOf(columns) - workersWidth; over > 0 {
		most := widthOf(columns[:1]) - over
		for i, id := range columns[0] {
			columns[0][i] = shortened(id, most)
		}
	}
	table := tabwriter.NewWriter(w, 0, 0, tableGap, ' ', 0)
	for i := range columns[0] {
		line := make([]string, len(columns))
		for j := range columns {
			line[j] = columns[j][i]
		}
		fmt.Fprintln(table, strings.Join(line, "\t"))
	}
	if err := table.Flush(); err != nil || without == nil {
		return err
	}
	_, err := fmt.Fprintf(notes, "left out to fit %d columns: %s; --json has all\n", workersWidth, strings.Join(without, ", "))
	return err
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

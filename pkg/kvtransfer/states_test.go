package kvtransfer_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
)

var update = flag.Bool("update", false, "write the tables of docs/kv-transfer-states.md anew")

const statesPage = "../../docs/kv-transfer-states.md"

const statesText = `# The states of a KV transfer

Generated from the tables in [receiver](../pkg/kvtransfer/receiver/table.go) and [sender](../pkg/kvtransfer/sender/table.go) by ` + "`go test ./pkg/kvtransfer -run TestStatesPage -update`" + `. [kv-transfer.md](kv-transfer.md) explains the protocol.

A row is what happens to a transfer, a column the state that it is in. A cell says what is done and, behind the arrow, which other states that may lead to: one of them, or the transfer stays where it is. Capital letters begin messages that are sent; small ones what the owner is told. "Cannot happen" is checked by the model test as much as the others.

## The receiver

* **reserved**: the ticket is out, nobody came with it.
* **open**: accepted, chunks arrive; some stripes may be committed.
* **committing**: Commit was read on every stripe and all is there; copies are under way.
* **ending**: it is over for its owner. The blocks are in quarantine until Abort was read on every stripe, or every stream of the session has ended.
* **draining**: no chunk can come any more; copies are under way.
* **gone**: committed or drained; the blocks are the owner's.

`

const senderText = `
## The sender

* **waiting**: Open is not on the stream yet.
* **opening**: Open was sent, an answer is due.
* **open**: chunks may be sent; Commit may have been, over some stripes.
* **committing**: Commit was sent over every stripe, an answer is due.
* **aborting**: Abort will be or was sent over every stripe; after that, Drained is due.
* **reading**: nothing is awaited of the receiver; pages are still read.
* **over**: its end is told, and its pages are free.

`

// The page shows the tables as they are.
func TestStatesPage(t *testing.T) {
	want := statesText + receiver.Markdown() + senderText + sender.Markdown()
	if *update {
		if err := os.WriteFile(statesPage, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(statesPage)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not current: run go test ./pkg/kvtransfer -run TestStatesPage -update", statesPage)
	}
}

// Every event has a cell in every state.
func TestTablesAreWhole(t *testing.T) {
	for side, table := range map[string]string{"receiver": receiver.Markdown(), "sender": sender.Markdown()} {
		for row := range strings.Lines(table) {
			cells := strings.Split(strings.TrimSpace(row), "|")
			for i, cell := range cells[1 : len(cells)-1] {
				if i > 0 && strings.TrimSpace(cell) == "" {
					t.Errorf("the %s's table has an empty cell: %s", side, row)
				}
			}
		}
	}
}
